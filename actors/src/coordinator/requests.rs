//! The live requests: who asked, what they have heard, and what it has cost.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use pocket_collectives::Counters;
use pocket_device::WorkDone;
use pocket_model::sampler::Sampler;
use tokio::sync::{mpsc, oneshot};

use super::answer::Answer;
use super::plan::{Next, Part, RequestKey};
use crate::api::{
    EngineCounters, Event, FinishReason, MAX_ANSWERS, RequestError, RequestStatus, Score, Timings,
    TokenLogprobs,
};
use crate::observe::{EndedRequest, Stages, TraceHeaders};

/// Events that may wait for a request's client, beside those that lie in the buffers of its connection.
pub(crate) const MOST_UNREAD: usize = 8192;
/// Room that is kept for the end: of every answer, and of the request.
const ROOM_FOR_THE_END: usize = MAX_ANSWERS + 4;

/// What a request is for.
pub(crate) enum Work {
    /// Answers.
    Generate(Box<Generation>),
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

/// Answers to a prompt as they grow.
pub(crate) struct Generation {
    /// One entry an answer.
    pub choices: Vec<Choice>,
    /// Log-probabilities of their tokens are wanted, with so many alternatives.
    pub logprobs: Option<usize>,
    /// Those of the prompt are wanted.
    pub prompt: Option<PromptLogprobs>,
    /// Who listens. A client that reads slowly must not slow the others down, so nobody waits for room
    /// here: who leaves more than [`MOST_UNREAD`] events unread is not served to the end.
    pub events: mpsc::Sender<Event>,
}

/// Log-probabilities of a prompt's tokens.
pub(crate) struct PromptLogprobs {
    /// Alternatives beside each.
    pub top: usize,
    /// Those known so far; none for the first token, which nothing precedes.
    pub found: Vec<Option<TokenLogprobs>>,
}

/// One answer.
pub(crate) struct Choice {
    /// Tokens to text, and when to end.
    pub answer: Answer,
    /// Chooses the tokens.
    pub sampler: Sampler,
    /// It is complete.
    pub ended: bool,
    /// When it last had a token.
    pub last_token: Option<Instant>,
}

impl Generation {
    /// What has to be known of the row after which an answer's next token is chosen.
    pub fn next(&self, choice: usize) -> Next {
        let alternatives = self.logprobs.is_some_and(|top| top > 0);
        match alternatives || self.choices[choice].sampler.needs_logits() {
            true => Next::Logits,
            false => Next::Greedy,
        }
    }

    /// Whether its client has left too much unread.
    pub fn is_unread(&self) -> bool {
        !self.events.is_closed() && self.events.capacity() < ROOM_FOR_THE_END
    }

    /// Whether every answer is complete.
    pub fn ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.ended)
    }

    /// Completes the answers that are not. Text held back is shown: no more tokens come that could
    /// make a stop text of it.
    pub fn end_all(&mut self, reason: FinishReason) {
        for (index, choice) in self.choices.iter_mut().enumerate().filter(|(_, c)| !c.ended) {
            choice.ended = true;
            let text = choice.answer.rest();
            tell(&self.events, Event::Ended { choice: index, reason, text });
        }
    }
}

/// Tells a client something. One that has gone hears nothing, which is right; that there is room for it,
/// [`Generation::is_unread`] has said.
pub(crate) fn tell(client: &mpsc::Sender<Event>, event: Event) {
    let _ = client.try_send(event);
}

/// Forward calls that have been done, and their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallsDone {
    /// Calls.
    pub calls: u64,
    /// Rows of them.
    pub rows: u64,
}

impl CallsDone {
    /// What was done after `earlier`.
    fn since(self, earlier: Self) -> Self {
        Self { calls: self.calls - earlier.calls, rows: self.rows - earlier.rows }
    }
}

/// One live request.
pub(crate) struct Request {
    /// The engine's name for it.
    pub id: String,
    /// The client's.
    pub label: Option<String>,
    /// The trace it belongs to.
    pub trace: Option<TraceHeaders>,
    /// What is logged of it is logged in here.
    pub span: tracing::Span,
    /// Why its answers ended, in the order in which they did.
    pub reasons: Vec<FinishReason>,
    /// What it is for.
    pub work: Work,
    arrived: Instant,
    timeout: Option<Duration>,
    first_call: Option<Instant>,
    first_token: Option<Instant>,
    /// What the engine had done when it arrived.
    done_at_arrival: CallsDone,
    /// What the engine did until its first token.
    before_first_token: CallsDone,
    last_token: Option<Instant>,
    prompt_tokens: usize,
    completion_tokens: u64,
    prefill_calls: u64,
    preemptions: u64,
    counters: EngineCounters,
}

/// What a token was to its request, with the time since the one before, or since its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenTime {
    /// The first of all.
    First(Duration),
    /// The first of a further answer.
    FirstOfAnswer,
    /// Another one.
    Later(Duration),
}

impl Request {
    /// A request that arrives now, when the engine has done so much.
    pub fn new(
        id: String,
        label: Option<String>,
        work: Work,
        prompt_tokens: usize,
        timeout: Option<Duration>,
        now: Instant,
        done: CallsDone,
    ) -> Self {
        Self {
            span: tracing::info_span!("request", id),
            id,
            label,
            trace: None,
            reasons: Vec::new(),
            work,
            arrived: now,
            timeout,
            first_call: None,
            first_token: None,
            done_at_arrival: done,
            before_first_token: CallsDone::default(),
            last_token: None,
            prompt_tokens,
            completion_tokens: 0,
            prefill_calls: 0,
            preemptions: 0,
            counters: EngineCounters::default(),
        }
    }

    /// A step that carries some of it goes out. Whether it is the first.
    pub fn call_begins(&mut self, now: Instant) -> bool {
        self.first_call.replace(self.first_call.unwrap_or(now)).is_none()
    }

    /// How long it may take.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// When it must be done.
    pub fn deadline(&self) -> Option<Instant> {
        // One beyond the clock's range never comes.
        self.arrived.checked_add(self.timeout?)
    }

    /// Tokens of its prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// A step that carried some of it is done; `spent` is what the step added to each rank's counters
    /// and to rank 0's work.
    pub fn call_ends(&mut self, parts: &[&Part], spent: &[Counters], work: WorkDone) {
        self.prefill_calls += u64::from(parts.iter().any(|part| part.prompt));
        self.counters.forward_passes += 1;
        self.counters.work += work;
        self.counters.ranks.resize(spent.len(), Counters::default());
        for (total, spent) in self.counters.ranks.iter_mut().zip(spent) {
            add(total, spent);
        }
    }

    /// A sequence of it has given its memory up.
    pub fn preempted(&mut self) {
        self.preemptions += 1;
    }

    /// One of its answers has a token more, when the engine has done so much.
    pub fn count_token(&mut self, choice: usize, now: Instant, done: CallsDone) -> TokenTime {
        let first = self.first_token.is_none();
        if first {
            self.first_token = Some(now);
            self.before_first_token = done.since(self.done_at_arrival);
        }
        self.last_token = Some(now);
        self.completion_tokens += 1;
        let before = match &mut self.work {
            Work::Generate(generation) => generation.choices[choice].last_token.replace(now),
            Work::Score { .. } => None,
        };
        match before {
            _ if first => TokenTime::First(now.duration_since(self.arrived)),
            Some(before) => TokenTime::Later(now.duration_since(before)),
            None => TokenTime::FirstOfAnswer,
        }
    }

    /// For operators; so many of its sequences run and wait.
    pub fn status(&self, running: usize, waiting: usize, now: Instant) -> RequestStatus {
        RequestStatus {
            id: self.id.clone(),
            label: self.label.clone(),
            age_s: now.duration_since(self.arrived).as_secs_f64(),
            running,
            waiting,
            timings: self.timings(now),
        }
    }

    /// Tokens its client has been given.
    pub fn tokens(&self) -> u64 {
        self.completion_tokens
    }

    /// What its calls did.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// Where its time went.
    pub fn timings(&self, now: Instant) -> Timings {
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let first_call = self.first_call.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now).max(first_call);
        Timings {
            queue_ms: ms(self.arrived, first_call),
            prefill_ms: ms(first_call, first_token),
            decode_ms: self.last_token.map_or(0.0, |last| ms(first_token, last)),
            prefill_calls: self.prefill_calls,
            calls_before_first_token: self.before_first_token.calls,
            rows_before_first_token: self.before_first_token.rows,
            prompt_tokens: self.prompt_tokens as u64,
            cached_tokens: 0,
            completion_tokens: self.completion_tokens,
            preemptions: self.preemptions,
        }
    }

    /// The stages it has been through.
    fn stages(&self, now: Instant) -> Stages {
        let Some(first_call) = self.first_call else {
            return Stages { queue: now.duration_since(self.arrived), ..Stages::default() };
        };
        let queue = first_call.duration_since(self.arrived);
        let until = self.first_token.unwrap_or(now);
        let prefill = Some(until.duration_since(first_call));
        let decode = self.first_token.map(|first| now.duration_since(first));
        Stages { queue, prefill, decode }
    }

    /// The record of it, as it leaves.
    pub fn ended(&self, model: &str, outcome: &'static str, now: Instant) -> EndedRequest {
        EndedRequest {
            id: self.id.clone(),
            label: self.label.clone(),
            model: model.to_string(),
            trace: self.trace.clone(),
            arrived: SystemTime::now() - now.duration_since(self.arrived),
            ended: now,
            outcome,
            reasons: self.reasons.clone(),
            stages: self.stages(now),
            timings: self.timings(now),
        }
    }

    /// Tells the client the end of everything. A client that has gone hears nothing, which is right.
    pub fn finish(self, now: Instant) {
        let timings = self.timings(now);
        match self.work {
            Work::Generate(generation) => {
                let counters = self.counters;
                tell(&generation.events, Event::Finished { timings, counters });
            }
            Work::Score { logprobs, last_logits, reply } => {
                let _ = reply.send(Ok(Score { logprobs, last_logits, counters: self.counters }));
            }
        }
    }

    /// Ends it because its client, or somebody else, asked for it.
    pub fn cancel(mut self, now: Instant) {
        match &mut self.work {
            Work::Generate(generation) => {
                generation.end_all(FinishReason::Cancelled);
                self.finish(now);
            }
            Work::Score { .. } => self.fail(RequestError::Cancelled),
        }
    }

    /// Tells the client that there will be no end.
    pub fn fail(self, error: RequestError) {
        match self.work {
            Work::Generate(generation) => {
                tell(&generation.events, Event::Failed(error));
            }
            Work::Score { reply, .. } => {
                let _ = reply.send(Err(error));
            }
        }
    }
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

/// All live requests, by key and by the engine's names.
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

    /// The keys of the live requests that go by this name, the engine's or their clients'; the oldest
    /// first.
    pub fn keys(&self, name: &str) -> Vec<RequestKey> {
        let is_named = |request: &Request| {
            request.id == name || request.label.as_deref().is_some_and(|label| label == name)
        };
        let named = self.by_key.iter().filter(|(_, request)| is_named(request));
        let mut keys: Vec<RequestKey> = named.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
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

    /// The keys of all requests, the oldest first.
    pub fn all(&self) -> Vec<RequestKey> {
        let mut all: Vec<RequestKey> = self.by_key.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// The keys of the requests whose clients have gone away.
    pub fn abandoned(&self) -> Vec<RequestKey> {
        let gone = |request: &Request| match &request.work {
            Work::Generate(generation) => generation.events.is_closed(),
            Work::Score { reply, .. } => reply.is_closed(),
        };
        let gone = self.by_key.iter().filter(|(_, request)| gone(request));
        gone.map(|(key, _)| *key).collect()
    }

    /// Whether nobody waits for anything.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
