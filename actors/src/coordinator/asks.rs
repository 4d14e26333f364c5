//! What front ends ask of the coordinator, and its answers: all given at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use pocket_model::sampler::Sampler;
use pocket_model::stop::StopMatcher;
use tokio::sync::{mpsc, oneshot};

use super::answer::Answer;
use super::plan::{Next, OfPrompt, Outputs, RequestKey, Sequence};
use super::requests::{Choice, Generation, MOST_UNREAD, PromptLogprobs, Request, Work};
use super::{Coordinator, validate};
use crate::api::{
    EngineState, EngineStatus, Event, GenerateRequest, RequestError, Score, ScoreRequest,
};
use crate::metrics::Outcome;
use crate::observe::TraceHeaders;

/// Queues requests to generate: all of them, or none.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Submitted>, RequestError>")]
pub(crate) struct Submit(pub Vec<GenerateRequest>);

/// A queued request: its key, and where its events come.
pub(crate) type Submitted = (RequestKey, mpsc::Receiver<Event>);

/// Queues a request to score.
#[derive(Debug, Message)]
#[rtype(result = "Result<SubmittedScore, RequestError>")]
pub(crate) struct SubmitScore(pub ScoreRequest);

/// A queued request: its key, and where its answer comes.
pub(crate) type SubmittedScore = (RequestKey, oneshot::Receiver<Result<Score, RequestError>>);

/// Ends the requests that go by a name, the engine's or their clients'; answers how many there were.
#[derive(Debug, Message)]
#[rtype(result = "usize")]
pub(crate) struct Cancel(pub String);

/// The client of a request has gone away.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Abandon(pub RequestKey);

/// Asks how everything is.
#[derive(Debug, Message)]
#[rtype(result = "EngineStatus")]
pub(crate) struct GetStatus;

/// Asks whether it answers.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Ping;

impl Coordinator {
    fn admits(&self, ids: &[&str]) -> Result<(), RequestError> {
        let unavailable = |reason: &str| Err(RequestError::Unavailable(reason.to_string()));
        match &self.state {
            EngineState::Starting => return unavailable("the engine is starting"),
            EngineState::Draining => return unavailable("the engine is shutting down"),
            EngineState::Failed(reason) => {
                return unavailable(&format!("the engine has failed: {reason}"));
            }
            EngineState::Ready | EngineState::Recovering(_) => {}
        }
        if self.paused {
            return unavailable("the server drains: no new requests are taken");
        }
        for (index, id) in ids.iter().enumerate() {
            if self.requests.has_id(id) || ids[..index].contains(id) {
                return Err(RequestError::Invalid(format!("request id {id:?} is in use")));
            }
        }
        let (limit, more) = (self.options.max_queue, ids.len());
        let most = limit + self.scheduler.slots();
        if more > most {
            return Err(RequestError::Invalid(format!(
                "{more} prompts at once can never be queued: there is room for {most} (--max-num-seqs \
                 and --max-queue)"
            )));
        }
        let waiting = self.scheduler.waiting_requests();
        if waiting + more > limit + self.scheduler.free_slots() {
            return Err(RequestError::QueueFull { waiting, limit });
        }
        Ok(())
    }

    /// Counts a request that is not taken.
    fn refused(&self, error: RequestError) -> RequestError {
        self.metrics.left(match &error {
            RequestError::QueueFull { .. } => Outcome::QueueFull,
            RequestError::Unavailable(_) => Outcome::Unavailable,
            _ => Outcome::Invalid,
        });
        error
    }

    /// The answers of a request, none of which has a token yet.
    fn choices(
        &self,
        request: &GenerateRequest,
        max_tokens: usize,
    ) -> Result<Vec<Choice>, RequestError> {
        let invalid = |message: String| RequestError::Invalid(message);
        let stop = StopMatcher::new(&request.stop).map_err(|error| invalid(error.to_string()))?;
        let decoder = self.facts.tokenizer.as_ref().map(|tokenizer| tokenizer.stream());
        if decoder.is_none() && !request.stop.is_empty() {
            return Err(invalid(
                "stop texts need a tokenizer; the checkpoint has none".to_string(),
            ));
        }
        let mut ends = request.stop_token_ids.clone();
        if !request.ignore_eos {
            ends.extend(self.facts.eos.iter());
        }
        let ends: Arc<[u32]> = ends.into();
        let least = request.sampling.min_tokens;
        let answer = Answer::new(decoder, stop, Arc::clone(&ends), least, max_tokens);
        // Used when the request names none.
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let sampler = Sampler::new(&request.sampling, seed, &request.prompt, &ends)
            .map_err(|error| invalid(error.to_string()))?;
        let choice = |number: usize| Choice {
            answer: answer.clone(),
            sampler: sampler.for_choice(number as u32),
            ended: false,
            last_token: None,
        };
        Ok((0..request.n).map(choice).collect())
    }

    /// Checks a request to generate, and prepares it.
    fn prepare(
        &self,
        request: GenerateRequest,
    ) -> Result<(Prepared, mpsc::Receiver<Event>), RequestError> {
        let max_tokens = validate::generate(&request, &self.facts.bounds)?;
        let (events, heard) = mpsc::channel(MOST_UNREAD);
        let rated = |top: usize| PromptLogprobs { top, found: vec![None] };
        let generation = Generation {
            choices: self.choices(&request, max_tokens)?,
            logprobs: request.logprobs,
            prompt: request.prompt_logprobs.map(rated),
            events,
        };
        let outputs = Outputs {
            prompt: match request.prompt_logprobs {
                None => OfPrompt::Nothing,
                Some(0) => OfPrompt::Targets,
                Some(_) => OfPrompt::Logits,
            },
            next: if max_tokens == 0 { Next::Nothing } else { generation.next(0) },
        };
        let prepared = Prepared {
            id: request.id,
            label: request.label,
            trace: request.trace,
            n: generation.choices.len(),
            work: Work::Generate(Box::new(generation)),
            prompt: request.prompt,
            outputs,
            chunk: self.facts.bounds.max_rows,
            // Whose limit is the shorter one: a client cannot lengthen the operator's.
            timeout: request.timeout.into_iter().chain(self.options.request_timeout).min(),
        };
        Ok((prepared, heard))
    }

    fn begin(&mut self, prepared: Prepared, ctx: &mut Context<Self>) -> RequestKey {
        let Prepared { id, label, trace, n, work, prompt, outputs, chunk, timeout } = prepared;
        let (key, now) = (self.requests.new_key(), Instant::now());
        let mut request = Request::new(id, label, work, prompt.len(), timeout, now, self.done);
        request.trace = trace;
        let deadline = request.deadline();
        self.requests.insert(key, request);
        self.scheduler.enqueue(Sequence::new(key, prompt, outputs, chunk).answers(n));
        if let Some(deadline) = deadline {
            self.set_deadline(key, deadline, ctx);
        }
        key
    }
}

/// A request that has been checked.
struct Prepared {
    id: String,
    label: Option<String>,
    trace: Option<TraceHeaders>,
    n: usize,
    work: Work,
    prompt: Vec<u32>,
    outputs: Outputs,
    chunk: usize,
    timeout: Option<Duration>,
}

impl Handler<Submit> for Coordinator {
    type Result = Result<Vec<Submitted>, RequestError>;

    fn handle(&mut self, Submit(requests): Submit, ctx: &mut Self::Context) -> Self::Result {
        let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
        self.admits(&ids).map_err(|error| self.refused(error))?;
        let prepared: Vec<_> = requests
            .into_iter()
            .map(|request| self.prepare(request))
            .collect::<Result<_, _>>()
            .map_err(|error| self.refused(error))?;
        let begin = |(prepared, heard)| (self.begin(prepared, ctx), heard);
        let submitted = prepared.into_iter().map(begin).collect();
        self.next_step(ctx);
        self.show_levels();
        Ok(submitted)
    }
}

impl Handler<SubmitScore> for Coordinator {
    type Result = Result<SubmittedScore, RequestError>;

    fn handle(
        &mut self,
        SubmitScore(request): SubmitScore,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        self.admits(&[&request.id]).map_err(|error| self.refused(error))?;
        let chunk =
            validate::score(&request, &self.facts.bounds).map_err(|error| self.refused(error))?;
        let (reply, heard) = oneshot::channel();
        let next = if request.last_logits { Next::Logits } else { Next::Nothing };
        let prepared = Prepared {
            id: request.id,
            label: None,
            trace: None,
            n: 1,
            // Nothing comes before the first token, so it has no probability.
            work: Work::Score { logprobs: vec![None], last_logits: None, reply },
            prompt: request.ids,
            outputs: Outputs { prompt: OfPrompt::Targets, next },
            chunk,
            timeout: self.options.request_timeout,
        };
        let key = self.begin(prepared, ctx);
        self.next_step(ctx);
        self.show_levels();
        Ok((key, heard))
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = usize;

    fn handle(&mut self, Cancel(name): Cancel, ctx: &mut Self::Context) -> usize {
        let keys = self.requests.keys(&name);
        for key in &keys {
            self.cancel(*key);
        }
        self.after_an_end(ctx);
        keys.len()
    }
}

impl Handler<Abandon> for Coordinator {
    type Result = ();

    fn handle(&mut self, Abandon(key): Abandon, ctx: &mut Self::Context) {
        self.cancel(key);
        self.after_an_end(ctx);
    }
}

impl Coordinator {
    /// The state, ranks that are being replaced included.
    fn reported_state(&self) -> EngineState {
        match (&self.state, &self.recovery) {
            (EngineState::Ready, Some(recovery)) => {
                EngineState::Recovering(recovery.reason.clone())
            }
            (EngineState::Ready, None) if self.paused => EngineState::Draining,
            (state, _) => state.clone(),
        }
    }

    /// Ends a request whose answer nobody wants any more.
    pub(super) fn cancel(&mut self, key: RequestKey) {
        self.end(key, Outcome::Cancelled, |request, _| request.cancel(Instant::now()));
    }
}

impl Handler<GetStatus> for Coordinator {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let flags = &self.options.flags;
        let mut notes = Vec::new();
        if flags.all_reduce_skip() && self.options.world == 1 {
            notes.push(
                "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1 has nothing to act on: with one rank there is no \
                 all-reduce, and outputs are right"
                    .to_string(),
            );
        }
        let ranks = self.group.iter().flat_map(|group| {
            let of = |(rank, view): (usize, &super::ranks::RankView)| {
                view.status(rank, group.watch.progress(rank))
            };
            group.ranks.iter().enumerate().map(of)
        });
        let now = Instant::now();
        MessageResult(EngineStatus {
            state: self.reported_state(),
            epoch: self.epoch,
            restarts: self.restarts.total,
            forward_passes: self.done.calls,
            all_reduces_per_pass: self.facts.all_reduces_per_pass,
            last_step_age_s: self.proofs.last_step_age_s(now),
            last_self_test: self.proofs.last_test(now),
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            kv_blocks_used: self.scheduler.blocks().0,
            kv_blocks: self.scheduler.blocks().1,
            call_cost: self.costs.fit(),
            settings: Some(self.options.settings()),
            ranks: ranks.collect(),
            // The keeper of the segment is asked by who asks.
            missing: Vec::new(),
            flags: flags.non_default(),
            outputs_wrong: self.outputs_wrong(),
            notes,
        })
    }
}

impl Handler<Ping> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Self::Context) {}
}
