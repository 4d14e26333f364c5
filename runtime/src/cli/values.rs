//! Values that only the command line has.

use pocket_bench::load::{Metric, Slo};

/// Token ids, at least one. Whether the model knows them is for the model to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

/// Ids separated by commas, spaces allowed around them.
pub fn token_ids(text: &str) -> Result<TokenIds, String> {
    if text.trim().is_empty() {
        return Err("there are no ids; give at least one, such as --ids 1,2,3".to_owned());
    }
    let ids: Result<Vec<u32>, String> = text
        .split(',')
        .map(|piece| {
            let piece = piece.trim();
            piece.parse().map_err(|_| format!("'{piece}' is not a token id: a whole number from 0"))
        })
        .collect();
    ids.map(TokenIds)
}

/// A count of at least one.
pub fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=u32::MAX as usize).contains(count))
        .ok_or_else(|| format!("a whole number from 1 to {} is needed", u32::MAX))
}

/// Counts of at least one, at least one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts(pub Vec<usize>);

/// Counts separated by commas.
pub fn counts(text: &str) -> Result<Counts, String> {
    text.split(',').map(|piece| positive(piece.trim())).collect::<Result<_, _>>().map(Counts)
}

/// Tokens of a forward call: the recurrence is cut at multiples of 64.
pub fn chunk(text: &str) -> Result<usize, String> {
    positive(text)
        .ok()
        .filter(|tokens| tokens.is_multiple_of(64))
        .ok_or_else(|| "a positive multiple of 64 is needed".to_owned())
}

/// A duration that a measurement can take.
pub fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=60.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.01 to 60 is needed".to_owned())
}

/// Time between two looks.
pub fn interval(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.1 to 3600 is needed".to_owned())
}

/// Time of a recording; the daemon records no longer.
pub fn recording(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=600.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.1 to 600 is needed".to_owned())
}

/// An amount above zero, or zero: a time, a rate.
pub fn amount(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|amount| (0.0..1e18).contains(amount))
        .ok_or_else(|| "a number from 0 is needed".to_owned())
}

/// A share of a limit.
pub fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a number from 0 to 1 is needed, such as 0.5".to_owned())
}

/// A text that ends an answer; an empty one would end it before it began.
pub fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("a stop text cannot be empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// A number above 0.
pub fn above_zero(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| *number > 0.0 && number.is_finite())
        .ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// The address of a server, without a slash at its end.
pub fn base_url(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    let host = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    match host {
        Some(host) if host.ends_with("/v1") => {
            Err("/v1 is part of the route; leave it out here".to_owned())
        }
        Some(host) if !host.is_empty() => Ok(url.to_owned()),
        _ => Err("an address such as http://127.0.0.1:8000 is needed".to_owned()),
    }
}

/// A route of a server.
pub fn endpoint(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("a path such as /v1/completions is needed".to_owned())
    }
}

/// `NAME=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("NAME=VALUE is needed".to_owned()),
    }
}

/// A JSON object.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonObject(pub serde_json::Map<String, serde_json::Value>);

/// A JSON object, such as `{"temperature": 0}`.
pub fn json_object(text: &str) -> Result<JsonObject, String> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(object)) => Ok(JsonObject(object)),
        Ok(_) => Err("a JSON object is needed, such as {\"temperature\": 0}".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

/// A limit that answers must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Of what.
    pub metric: Metric,
    /// Milliseconds.
    pub limit_ms: f64,
}

/// `METRIC:MS`, of a metric that every answer has.
pub fn objective(text: &str) -> Result<Objective, String> {
    let needed =
        || "METRIC:MILLISECONDS is needed, of ttft, tpot or e2el, such as ttft:200".to_owned();
    let (name, limit) = text.split_once(':').ok_or_else(needed)?;
    let metric = metric(name).filter(|metric| *metric != Metric::Itl).ok_or_else(needed)?;
    let limit_ms: f64 = limit.parse().map_err(|_| needed())?;
    if limit_ms >= 0.0 { Ok(Objective { metric, limit_ms }) } else { Err(needed()) }
}

/// All limits together; the last one of a metric holds.
pub fn slo(objectives: &[Objective]) -> Option<Slo> {
    objectives.iter().fold(None, |slo: Option<Slo>, objective| {
        let slo = slo.unwrap_or_default();
        let limit = Some(objective.limit_ms);
        Some(match objective.metric {
            Metric::Ttft => Slo { ttft: limit, ..slo },
            Metric::Tpot => Slo { tpot: limit, ..slo },
            Metric::E2el => Slo { e2el: limit, ..slo },
            // The option does not take it.
            Metric::Itl => slo,
        })
    })
}

/// Metrics that a result has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics(pub Vec<Metric>);

/// Metrics separated by commas.
pub fn metrics(text: &str) -> Result<Metrics, String> {
    let one = |name: &str| {
        let name = name.trim();
        metric(name).ok_or_else(|| format!("'{name}' is none of ttft, tpot, itl and e2el"))
    };
    text.split(',').map(one).collect::<Result<_, _>>().map(Metrics)
}

fn metric(name: &str) -> Option<Metric> {
    Metric::ALL.into_iter().find(|metric| metric.name() == name)
}

/// Percentiles that a result has.
#[derive(Clone, Debug, PartialEq)]
pub struct Percents(pub Vec<f64>);

/// Percentiles separated by commas.
pub fn percents(text: &str) -> Result<Percents, String> {
    let one = |text: &str| {
        text.trim()
            .parse()
            .ok()
            .filter(|percent| (0.0..=100.0).contains(percent))
            .ok_or_else(|| "numbers from 0 to 100 are needed, such as 50,90,99".to_owned())
    };
    text.split(',').map(one).collect::<Result<_, _>>().map(Percents)
}

/// A name that belongs to one of two arms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfArm {
    /// 0 for A, 1 for B.
    pub arm: usize,
    /// The name.
    pub name: String,
}

/// `a:NAME` or `b:NAME`.
pub fn of_arm(text: &str) -> Result<OfArm, String> {
    let (arm, name) = text.split_once(':').unwrap_or_default();
    let arm = match arm {
        "a" | "A" => 0,
        "b" | "B" => 1,
        _ => return Err("a:NAME or b:NAME is needed".to_owned()),
    };
    match name {
        "" => Err("a:NAME or b:NAME is needed".to_owned()),
        name => Ok(OfArm { arm, name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_belongs_to_one_arm() {
        let name = "pocket_forward_calls_total{kind=\"prefill\"}".to_owned();
        assert_eq!(of_arm(&format!("b:{name}")), Ok(OfArm { arm: 1, name }));
        for wrong in ["a:", "c:x", "pocket_x", ""] {
            assert!(of_arm(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn objectives_are_of_metrics_that_every_answer_has() {
        let expected = Objective { metric: Metric::Tpot, limit_ms: 12.5 };
        assert_eq!(objective("tpot:12.5"), Ok(expected));
        for bad in ["ttft", "ttft:", "ttft:-1", "itl:5", "ttft:NaN", "x:1"] {
            assert!(objective(bad).unwrap_err().contains("ttft:200"), "{bad}");
        }
    }

    #[test]
    fn servers_are_addresses() {
        assert_eq!(base_url("http://[::1]:8000/"), Ok("http://[::1]:8000".to_owned()));
        for bad in ["localhost:8000", "http://", "ftp://x"] {
            assert!(base_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_are_read_to_their_last_entry() {
        assert_eq!(metrics("e2el, ttft"), Ok(Metrics(vec![Metric::E2el, Metric::Ttft])));
        assert!(metrics("ttft,").unwrap_err().contains("''"));
        assert_eq!(percents("50,99.9"), Ok(Percents(vec![50.0, 99.9])));
        for bad in ["", "101", "50,-1", "p99"] {
            assert!(percents(bad).is_err(), "{bad}");
        }
        assert_eq!(pair("a = b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("=b").is_err() && pair("a").is_err());
        assert!(json_object("[]").is_err() && json_object("{").is_err());
        assert_eq!(json_object("{\"a\": 1}").unwrap().0["a"], 1);
    }
}
