//! The live requests: who asked, what they have heard, and what it has cost.

use std::collections::HashMap;
use std::time::Instant;

use pocket_collectives::Counters;
use pocket_model::sampler::Sampler;
use tokio::sync::{mpsc, oneshot};

use super::answer::Answer;
use super::plan::{Part, RequestKey};
use crate::api::{EngineCounters, Event, FinishReason, RequestError, Score, Timings};

/// What a request is for.
pub(crate) enum Work {
    /// Tokens, one after the other.
    Generate {
        /// Tokens to text, and when to end.
        answer: Box<Answer>,
        /// Chooses the tokens; none for a request that always takes the likeliest.
        sampler: Option<Box<Sampler>>,
        /// Who listens. Unbounded, and yet bounded by the tokens asked for: a client that reads slowly
        /// must not slow the others down.
        events: mpsc::UnboundedSender<Event>,
    },
    /// Log-probabilities.
    Score {
        /// Those known so far.
        logprobs: Vec<Option<f64>>,
        /// The last row.
        last_logits: Option<Vec<f32>>,
        /// Who listens.
        reply: oneshot::Sender<Result<Score, RequestError>>,
    },
}

/// One live request.
pub(crate) struct Request {
    /// The client's name for it.
    pub id: String,
    /// What it is for.
    pub work: Work,
    arrived: Instant,
    first_call: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    prompt_tokens: usize,
    completion_tokens: u64,
    prefill_calls: u64,
    counters: EngineCounters,
}

impl Request {
    /// A request that arrives now.
    pub fn new(id: String, work: Work, prompt_tokens: usize, now: Instant) -> Self {
        Self {
            id,
            work,
            arrived: now,
            first_call: None,
            first_token: None,
            last_token: None,
            prompt_tokens,
            completion_tokens: 0,
            prefill_calls: 0,
            counters: EngineCounters::default(),
        }
    }

    /// A step that carries some of it goes out.
    pub fn call_begins(&mut self, now: Instant) {
        self.first_call.get_or_insert(now);
    }

    /// A step that carried some of it is done; `spent` is what the step added to each rank's counters.
    pub fn call_ends(&mut self, part: &Part, spent: &[Counters]) {
        self.prefill_calls += u64::from(part.prompt);
        self.counters.forward_passes += 1;
        self.counters.ranks.resize(spent.len(), Counters::default());
        for (total, spent) in self.counters.ranks.iter_mut().zip(spent) {
            add(total, spent);
        }
    }

    /// It has a token more.
    pub fn count_token(&mut self, now: Instant) {
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.completion_tokens += 1;
    }

    /// What its calls did.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// Where its time went.
    fn timings(&self, now: Instant) -> Timings {
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let first_call = self.first_call.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now).max(first_call);
        Timings {
            queue_ms: ms(self.arrived, first_call),
            prefill_ms: ms(first_call, first_token),
            decode_ms: self.last_token.map_or(0.0, |last| ms(first_token, last)),
            prefill_calls: self.prefill_calls,
            prompt_tokens: self.prompt_tokens as u64,
            completion_tokens: self.completion_tokens,
        }
    }

    /// Tells the client the end. A client that has gone hears nothing, which is right.
    pub fn finish(self, reason: FinishReason, text: String, now: Instant) {
        let timings = self.timings(now);
        match self.work {
            Work::Generate { events, .. } => {
                let counters = self.counters;
                let _ = events.send(Event::Finished { reason, text, timings, counters });
            }
            Work::Score { logprobs, last_logits, reply } => {
                let score = Score { logprobs, last_logits, counters: self.counters };
                let _ = reply.send(match reason {
                    FinishReason::Cancelled => Err(cancelled(&self.id)),
                    _ => Ok(score),
                });
            }
        }
    }

    /// Ends it because its client, or somebody else, asked for it. Text held back is shown: no more
    /// tokens come that could make a stop text of it.
    pub fn cancel(mut self, now: Instant) {
        let text = match &mut self.work {
            Work::Generate { answer, .. } => answer.rest(),
            Work::Score { .. } => String::new(),
        };
        self.finish(FinishReason::Cancelled, text, now);
    }

    /// Tells the client that there will be no end.
    pub fn fail(self, error: RequestError) {
        match self.work {
            Work::Generate { events, .. } => {
                let _ = events.send(Event::Failed(error));
            }
            Work::Score { reply, .. } => {
                let _ = reply.send(Err(error));
            }
        }
    }
}

fn cancelled(id: &str) -> RequestError {
    RequestError::Unavailable(format!("request {id:?} was cancelled"))
}

fn add(total: &mut Counters, spent: &Counters) {
    total.run += spent.run;
    total.skipped += spent.skipped;
    total.bytes += spent.bytes;
    total.wait_us += spent.wait_us;
}

/// What a rank's counters grew by.
pub(crate) fn grown(before: &Counters, after: &Counters) -> Counters {
    Counters {
        run: after.run.saturating_sub(before.run),
        skipped: after.skipped.saturating_sub(before.skipped),
        bytes: after.bytes.saturating_sub(before.bytes),
        wait_us: after.wait_us.saturating_sub(before.wait_us),
    }
}

/// All live requests, by key and by the clients' names.
#[derive(Default)]
pub(crate) struct Requests {
    by_key: HashMap<RequestKey, Request>,
    by_id: HashMap<String, RequestKey>,
    last_key: u64,
}

impl Requests {
    /// Whether a live request has this name.
    pub fn has_id(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// The key of a live request.
    pub fn key(&self, id: &str) -> Option<RequestKey> {
        self.by_id.get(id).copied()
    }

    /// A key nobody has had.
    pub fn new_key(&mut self) -> RequestKey {
        self.last_key += 1;
        RequestKey(self.last_key)
    }

    /// A request begins.
    pub fn insert(&mut self, key: RequestKey, request: Request) {
        self.by_id.insert(request.id.clone(), key);
        self.by_key.insert(key, request);
    }

    /// A live request.
    pub fn get_mut(&mut self, key: RequestKey) -> Option<&mut Request> {
        self.by_key.get_mut(&key)
    }

    /// A live request.
    pub fn get(&self, key: RequestKey) -> Option<&Request> {
        self.by_key.get(&key)
    }

    /// A request ends.
    pub fn remove(&mut self, key: RequestKey) -> Option<Request> {
        let request = self.by_key.remove(&key)?;
        self.by_id.remove(&request.id);
        Some(request)
    }

    /// All requests end.
    pub fn drain(&mut self) -> Vec<(RequestKey, Request)> {
        self.by_id.clear();
        let mut all: Vec<_> = self.by_key.drain().collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }

    /// Whether nobody waits for anything.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
