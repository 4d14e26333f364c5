//! A run of `bench serve`: from what was asked for to a record.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Map, Value, json};

use super::bar::Bar;
use super::view::{ServerView, first_model};
use super::{
    Arrivals, Backend, Client, LoadError, Measured, Metric, Plan, ServerTokens, Slo, Target,
    TextCodec, Tokens, Workload,
};
use crate::record::{Invalid, Kind, Record};
use crate::report::number::counted;

/// Share of random prompts' tokens that a cache may have: what servers that cache token by token find by
/// chance.
pub const CACHED_SHARE: f64 = 0.05;

/// Name of the one server of a record.
const SERVER: &str = "server";

/// What is asked for. Names are those of the command's options.
pub struct Session {
    /// Who is asked; without a model's name, the first that the server lists.
    pub target: Target,
    /// A tokenizer at hand, and its name.
    pub tokenizer: Option<(String, Arc<dyn TextCodec>)>,
    /// Ask the server's own tokenizer if there is none at hand.
    pub ask_server_tokens: bool,
    /// Where requests come from.
    pub workload: Workload,
    /// How many are measured.
    pub num_prompts: usize,
    /// How many go before them, with prompts of their own.
    pub num_warmups: usize,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// Most open at a time.
    pub max_concurrency: Option<usize>,
    /// What prompts and arrival times are drawn from.
    pub seed: u64,
    /// What answers must keep to be good.
    pub slo: Option<Slo>,
    /// Metrics that are shown.
    pub metrics: Vec<Metric>,
    /// Percentiles of each.
    pub percents: Vec<f64>,
    /// Whether the result has every request.
    pub detailed: bool,
    /// A name for the result.
    pub label: Option<String>,
    /// Members that the user adds to the result.
    pub metadata: Vec<(String, String)>,
    /// Show no progress.
    pub quiet: bool,
}

/// What a session found out.
pub struct Told {
    /// The record; its result is what `vllm bench serve` would have saved, and more.
    pub record: Record<Map<String, Value>>,
    /// The run.
    pub measured: Measured,
    /// What does not make the record invalid, but a reader should know.
    pub notes: Vec<String>,
}

impl Session {
    /// Warms up, measures, and looks at the server before and after. `stop` ends the run before its time.
    ///
    /// # Errors
    ///
    /// The load cannot be made, or the server does not name its model. Requests that fail are part of the
    /// result.
    pub async fn run(
        mut self,
        reproduce: Vec<String>,
        stop: impl Future,
    ) -> Result<Told, LoadError> {
        let http = Client::new(self.target.clone())?.http().clone();
        let (base_url, headers) = (self.target.base_url.clone(), self.target.headers.clone());
        if self.target.model.is_none() {
            self.target.model = Some(first_model(&http, &base_url, &headers).await?.id);
        }
        let client = Client::new(self.target.clone())?;
        let (tokens, tokenizer_id) = self.tokens(client.http()).await;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let count = self.num_prompts + self.num_warmups;
        let made = self.workload.make(count, self.target.backend, tokens.as_ref(), &mut rng);
        let mut requests = made.await?;
        let warmups = requests.split_off(self.num_prompts);
        let offsets = self.arrivals.offsets(requests.len(), &mut rng);
        let mut record = Record::new(Kind::Serve, reproduce, Map::new());
        // Once it was ready it is not asked again.
        let stop = stop.fuse();
        tokio::pin!(stop);
        record.warmed_up = !warmups.is_empty();
        let warmed = Plan::at_once(warmups, self.max_concurrency);
        let warmed = Bar::over("warming up", warmed, &client, self.quiet, &mut stop).await;
        let mut notes = Vec::new();
        let warmup_failure = warmed.outcomes.iter().flatten().find_map(|o| o.answer.as_ref().err());
        if let Some(failure) = warmup_failure {
            notes.push(format!("a request of the warm-up failed: {failure}"));
        }
        let before = ServerView::read(client.http(), &base_url, &headers).await;
        let plan = Plan { offsets, ..Plan::at_once(requests, self.max_concurrency) };
        let plan = if warmed.interrupted { Plan::default() } else { plan };
        let ran = Bar::over("measuring", plan, &client, self.quiet, &mut stop).await;
        let after = ServerView::read(client.http(), &base_url, &headers).await;
        let mut measured = Measured::of(ran, self.slo, &self.percents);
        measured.interrupted |= warmed.interrupted;
        record.servers.push(ServerView::entry(SERVER, &base_url, &before, &after));
        record.cached_tokens = measured.cached_tokens();
        record.prefix_cache_hits = measured.cache_hits();
        for reason in before.changes(&after, SERVER) {
            record.invalidate(reason);
        }
        self.judge(&measured, &mut record, &mut notes);
        record.result = self.result(&measured, &record.time, tokenizer_id);
        Ok(Told { record, measured, notes })
    }

    /// The tokenizer, and its name.
    async fn tokens(&self, http: &reqwest::Client) -> (Option<Tokens>, Option<String>) {
        if let Some((name, codec)) = &self.tokenizer {
            return (Some(Tokens::Local(codec.clone())), Some(name.clone()));
        }
        if !self.ask_server_tokens {
            return (None, None);
        }
        let (base_url, headers) = (&self.target.base_url, &self.target.headers);
        match ServerTokens::find(http, base_url, headers).await {
            Some(server) => {
                let name = server.url().to_owned();
                (Some(Tokens::Server(server)), Some(name))
            }
            None => (None, None),
        }
    }

    /// What speaks against the record, and what a reader should know.
    fn judge(
        &self,
        measured: &Measured,
        record: &mut Record<Map<String, Value>>,
        notes: &mut Vec<String>,
    ) {
        let ended = measured.ended().count();
        if measured.failed() > 0 && measured.completed() > 0 {
            notes.push(format!(
                "{} of {ended} requests failed: times and percentiles are those of the others",
                measured.failed()
            ));
        }
        if let Some(first) = measured.first_failure().filter(|_| measured.completed() == 0) {
            record.invalidate(Invalid::AllFailed { requests: ended, first });
        }
        if measured.interrupted {
            let (done, planned) = (ended, self.num_prompts);
            record.invalidate(Invalid::Interrupted { done, planned, what: "requests".to_owned() });
        }
        let tokens = measured.cached_beyond(self.workload.shared_prefix());
        match self.workload {
            // Such prompts are made so that no cache can have more than their first tokens, by chance.
            Workload::Random(_) if tokens as f64 > CACHED_SHARE * measured.input_tokens() as f64 => {
                record.invalidate(Invalid::PrefixCacheServed { tokens });
            }
            Workload::Random(_) if tokens > 0 => notes.push(format!(
                "a prefix cache served {tokens} of {} prompt tokens: random prompts begin alike now and then",
                measured.input_tokens()
            )),
            _ if tokens > 0 => notes.push(format!(
                "a prefix cache served {tokens} prompt tokens: times to first token are those of this \
                 data set in this order"
            )),
            _ => {}
        }
        if measured.prompts_as_planned() == Some(false)
            && self.target.backend == Backend::Completions
        {
            notes.push(
                "the server counts other prompt lengths than were planned: its tokenizer is another, or \
                 it adds tokens"
                    .to_owned(),
            );
        }
        if measured.resent() > 0 {
            notes.push(format!(
                "{} sent again, because the server had closed the connection",
                counted(measured.resent(), "request")
            ));
        }
        notes.extend(measured.overhead.warning.clone());
    }

    /// The result, in the order in which vLLM has it.
    fn result(
        &self,
        measured: &Measured,
        time: &str,
        tokenizer_id: Option<String>,
    ) -> Map<String, Value> {
        let backend = self.target.backend.name();
        let rate = self.arrivals.rate();
        let Value::Object(mut result) = json!({
            "date": compact(time),
            "endpoint_type": backend,
            "backend": backend,
            "label": self.label,
            "model_id": self.target.model,
            "tokenizer_id": tokenizer_id,
            "num_prompts": self.num_prompts,
        }) else {
            return Map::new();
        };
        for (name, value) in &self.metadata {
            result.insert(name.clone(), json!(value));
        }
        let finite = |value: f64| if value.is_finite() { json!(value) } else { json!("inf") };
        result.insert("request_rate".into(), finite(rate));
        result.insert("burstiness".into(), finite(self.arrivals.burstiness()));
        result.insert("max_concurrency".into(), json!(self.max_concurrency));
        result.extend(measured.members(&self.metrics));
        result.insert("dataset_name".into(), json!(self.workload.name()));
        result.extend(self.workload.options());
        result.insert("num_warmups".into(), json!(self.num_warmups));
        result.insert("seed".into(), json!(self.seed));
        result.insert("ignore_eos".into(), json!(self.target.ignore_eos));
        result.insert("extra_body".into(), json!(self.target.extra_body));
        if self.target.backend == Backend::Chat {
            // A chat template adds tokens of its own.
            result.insert("prompts_as_planned".into(), Value::Null);
        }
        if self.detailed {
            result.extend(measured.detailed());
        }
        result
    }
}

/// `20260131-235900` of `2026-01-31T23:59:00Z`, as vLLM writes dates.
fn compact(time: &str) -> String {
    let digits: String = time.chars().filter(char::is_ascii_digit).take(14).collect();
    match digits.split_at_checked(8) {
        Some((day, hour)) => format!("{day}-{hour}"),
        None => digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_vllm_writes_them() {
        assert_eq!(compact("2026-01-31T23:59:01Z"), "20260131-235901");
    }
}
