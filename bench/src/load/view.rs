//! A server as it describes itself, before and after a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::LoadError;
use super::client::causes;
use super::failure::Failure;
use crate::record::{Counters, Invalid, Server};

/// A server that serves has these at hand.
const LIMIT: Duration = Duration::from_secs(10);

/// A model as `/v1/models` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstModel {
    /// Its name in requests.
    pub id: String,
    /// Who made the server: `pocketd`, `vllm`, `llamacpp`.
    pub owner: Option<String>,
    /// When it was loaded, seconds since 1970; another one after a restart.
    pub created: Option<u64>,
}

/// The first model a server lists.
///
/// # Errors
///
/// It cannot be reached, refuses, or lists none.
pub async fn first_model(
    http: &reqwest::Client,
    base_url: &str,
    headers: &HeaderMap,
) -> Result<FirstModel, LoadError> {
    let url = format!("{base_url}/v1/models");
    let failed = |reason: String| LoadError::Server { url: url.clone(), reason };
    let (status, body) = get(http, &url, headers).await.map_err(&failed)?;
    if status != 200 {
        return Err(failed(Failure::status(status, &body).to_string()));
    }
    let list: Value = serde_json::from_str(&body).map_err(|error| failed(error.to_string()))?;
    let model = &list["data"][0];
    let Some(id) = model["id"].as_str() else {
        return Err(failed("it lists no model; name one with --model".to_owned()));
    };
    Ok(FirstModel {
        id: id.to_owned(),
        owner: model["owned_by"].as_str().map(str::to_owned),
        created: model["created"].as_u64(),
    })
}

/// What a server says of itself at one moment. What one of another kind does not say is none or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    /// What `/version` says, or `/props`.
    pub version: Option<String>,
    /// The first model of `/v1/models`.
    pub model: Option<FirstModel>,
    /// What `/health` says, of a server like this one.
    pub health: Option<Health>,
    /// The samples of `/metrics`, histograms' buckets left out.
    pub counters: Counters,
}

/// `/health` of a `pocketd`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Its state, and why.
    pub state: String,
    /// Group of ranks.
    pub epoch: u64,
    /// Times the ranks were started again.
    pub restarts: u64,
    /// Process ids of the ranks, in their order.
    pub ranks: Vec<u64>,
    /// What rank 0 runs on.
    pub device: Option<String>,
    /// Experiment flags that are not at their defaults, by name.
    pub flags: BTreeMap<String, String>,
    /// Settings in force that results depend on.
    pub settings: BTreeMap<String, Value>,
}

impl ServerView {
    /// Asks a server for everything it may say of itself. What it does not answer is not there.
    pub async fn read(http: &reqwest::Client, base_url: &str, headers: &HeaderMap) -> Self {
        let ask = async |path: &str| -> Option<String> {
            let (status, body) = get(http, &format!("{base_url}{path}"), headers).await.ok()?;
            // An unhealthy server says so with 503.
            matches!(status, 200 | 503).then_some(body)
        };
        let member = async |path: &str, name: &str| -> Option<String> {
            let body: Value = serde_json::from_str(&ask(path).await?).ok()?;
            body[name].as_str().map(str::to_owned)
        };
        let version = match member("/version", "version").await {
            // `llama-server` says it there.
            None => member("/props", "build_info").await,
            version => version,
        };
        Self {
            version,
            model: first_model(http, base_url, headers).await.ok(),
            health: ask("/health").await.and_then(|body| Health::parse(&body)),
            counters: ask("/metrics").await.map(|text| samples(&text)).unwrap_or_default(),
        }
    }

    /// What shows that the server afterwards is not the one of before, or not under the same flags.
    pub fn changes(&self, after: &Self, server: &str) -> Vec<Invalid> {
        let mut changes = Vec::new();
        let server = server.to_owned();
        if let Some(before) = &self.health {
            match &after.health {
                None => return vec![Invalid::ServerSilent { server }],
                Some(after) if after.state != before.state => {
                    let (before, after) = (before.state.clone(), after.state.clone());
                    let server = server.clone();
                    changes.push(Invalid::StateChanged { server, before, after });
                }
                Some(_) => {}
            }
        }
        let mut restarted = |what: &str, before: String, after: String| {
            if before != after {
                changes.push(Invalid::ServerRestarted {
                    server: server.clone(),
                    what: what.to_owned(),
                    before,
                    after,
                });
            }
        };
        if let (Some(before), Some(after)) = (&self.model, &after.model) {
            let time =
                |model: &FirstModel| model.created.map_or("unknown".to_owned(), |t| t.to_string());
            // Others make this time up anew for every answer.
            if before.owner.as_deref() == Some("pocketd") {
                restarted("the time its model was loaded", time(before), time(after));
            }
        }
        let (Some(before), Some(after)) = (&self.health, &after.health) else { return changes };
        restarted("the epoch of its ranks", before.epoch.to_string(), after.epoch.to_string());
        restarted("its count of restarts", before.restarts.to_string(), after.restarts.to_string());
        let pids = |health: &Health| format!("{:?}", health.ranks);
        restarted("the process ids of its ranks", pids(before), pids(after));
        changes.extend(before.flag_changes(after, &server));
        changes
    }

    /// The record's entry of a server, from what it said before and after.
    pub fn entry(name: &str, address: &str, before: &Self, after: &Self) -> Server {
        let health = before.health.clone().unwrap_or_default();
        let program = match &before.model {
            Some(FirstModel { owner: Some(owner), .. }) => owner.clone(),
            _ => "unknown".to_owned(),
        };
        let ranks = before.health.as_ref().map(|health| health.ranks.len());
        Server {
            name: name.to_owned(),
            address: Some(address.to_owned()),
            version: before.version.as_ref().map(|version| format!("{program} {version}")),
            model: before.model.as_ref().map(|model| model.id.clone()),
            tensor_parallel_size: ranks,
            threads_per_rank: health
                .settings
                .get("threads_per_rank")
                .and_then(Value::as_u64)
                .and_then(|threads| usize::try_from(threads).ok()),
            device: health.device,
            settings: health.settings,
            flags: health.flags.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            counters_before: before.counters.clone(),
            counters_after: after.counters.clone(),
        }
    }
}

impl Health {
    fn parse(body: &str) -> Option<Self> {
        let health: Value = serde_json::from_str(body).ok()?;
        let ranks = health["ranks"].as_array()?;
        let state = health["state"].as_str()?;
        let state = match health["reason"].as_str() {
            Some(reason) => format!("{state}: {reason}"),
            None => state.to_owned(),
        };
        let flags = health["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let flags = flags.filter_map(|flag| flag.split_once('='));
        Some(Self {
            state,
            epoch: health["epoch"].as_u64()?,
            restarts: health["restarts"].as_u64()?,
            ranks: ranks.iter().filter_map(|rank| rank["pid"].as_u64()).collect(),
            device: ranks.first().and_then(|rank| rank["device"].as_str()).map(str::to_owned),
            flags: flags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            settings: health["settings"].as_object().cloned().into_iter().flatten().collect(),
        })
    }

    fn flag_changes(&self, after: &Self, server: &str) -> Vec<Invalid> {
        let names: BTreeSet<&String> = self.flags.keys().chain(after.flags.keys()).collect();
        let value = |flags: &BTreeMap<String, String>, name: &String| {
            flags.get(name).map_or_else(|| "its default".to_owned(), Clone::clone)
        };
        names
            .into_iter()
            .filter(|name| self.flags.get(*name) != after.flags.get(*name))
            .map(|name| Invalid::FlagChanged {
                server: server.to_owned(),
                flag: name.clone(),
                before: value(&self.flags, name),
                after: value(&after.flags, name),
            })
            .collect()
    }
}

/// Samples of Prometheus' text format.
fn samples(text: &str) -> Counters {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok().filter(|value: &f64| value.is_finite())?))
    };
    lines.filter_map(sample).collect()
}

async fn get(
    http: &reqwest::Client,
    url: &str,
    headers: &HeaderMap,
) -> Result<(u16, String), String> {
    let request = http.get(url).headers(headers.clone()).timeout(LIMIT);
    let response = request.send().await.map_err(|error| causes(&error))?;
    let status = response.status().as_u16();
    Ok((status, response.text().await.map_err(|error| causes(&error))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(health: Value) -> ServerView {
        let model = FirstModel {
            id: "demo".to_owned(),
            owner: Some("pocketd".to_owned()),
            created: health["created"].as_u64(),
        };
        let health = Health::parse(&health.to_string());
        assert!(health.is_some());
        ServerView { model: Some(model), health, ..ServerView::default() }
    }

    fn health() -> Value {
        json!({
            "state": "ready", "epoch": 1, "restarts": 0, "created": 5, "flags": ["POCKET_X=1"],
            "ranks": [{"pid": 10, "device": "cpu"}, {"pid": 11, "device": "cpu"}],
        })
    }

    fn changed(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut after = health();
        change(&mut after);
        let changes = view(health()).changes(&view(after), "server");
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_server_that_restarted_or_recovered_is_another_one() {
        assert_eq!(changed(|_| {}), [""; 0]);
        for (change, part) in [
            (json!({"epoch": 2}), "epoch"),
            (json!({"restarts": 1}), "restarts"),
            (json!({"created": 6}), "loaded"),
            (json!({"ranks": [{"pid": 10}, {"pid": 12}]}), "process ids"),
            (json!({"state": "recovering", "reason": "rank 1"}), "recovering: rank 1"),
        ] {
            let said = changed(|after| {
                for (name, value) in change.as_object().unwrap() {
                    after[name] = value.clone();
                }
            });
            assert!(said.len() == 1 && said[0].contains(part), "{part}: {said:?}");
        }
        let gone = view(health()).changes(&ServerView::default(), "server");
        assert!(matches!(gone[..], [Invalid::ServerSilent { .. }]), "{gone:?}");
    }

    #[test]
    fn flags_must_stay_as_they_are() {
        let said = changed(|after| after["flags"] = json!(["POCKET_X=2", "POCKET_Y=1"]));
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("POCKET_X") && said[0].contains("from 1 to 2"), "{said:?}");
        assert!(
            said[1].contains("POCKET_Y") && said[1].contains("from its default to 1"),
            "{said:?}"
        );
    }

    #[test]
    fn a_stranger_says_little_and_that_is_no_change() {
        for body in ["", "{\"status\": \"ok\"}", "[]"] {
            assert_eq!(Health::parse(body), None, "{body}");
        }
        let stranger = |created| {
            let model = FirstModel { id: "m".to_owned(), owner: None, created: Some(created) };
            ServerView { model: Some(model), ..ServerView::default() }
        };
        assert_eq!(stranger(1).changes(&stranger(2), "server"), []);
    }

    #[test]
    fn counters_are_read_from_prometheus_text() {
        let text = "# TYPE a counter\na{rank=\"0\"} 1.5\nb_bucket{le=\"1\"} 2\nb_sum 3\nc NaN\n";
        let counters = samples(text);
        let read: Vec<(&str, f64)> = counters.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        assert_eq!(read, [("a{rank=\"0\"}", 1.5), ("b_sum", 3.0)]);
    }
}
