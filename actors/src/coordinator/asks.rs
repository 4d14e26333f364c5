//! What front ends ask of the coordinator, and its answers: all given at once.

use std::sync::Arc;
use std::time::Instant;

use actix::prelude::*;
use pocket_model::sampler::Sampler;
use pocket_model::stop::StopMatcher;
use tokio::sync::{mpsc, oneshot};

use super::answer::Answer;
use super::plan::{Outputs, RequestKey, Sequence};
use super::requests::{Request, Work};
use super::{Coordinator, validate};
use crate::api::{
    EngineState, EngineStatus, Event, FinishReason, GenerateRequest, RequestError, Score,
    ScoreRequest,
};

/// Queues a request to generate.
#[derive(Debug, Message)]
#[rtype(result = "Result<Submitted, RequestError>")]
pub(crate) struct Submit(pub GenerateRequest);

/// A queued request: its key, and where its events come.
pub(crate) type Submitted = (RequestKey, mpsc::UnboundedReceiver<Event>);

/// Queues a request to score.
#[derive(Debug, Message)]
#[rtype(result = "Result<SubmittedScore, RequestError>")]
pub(crate) struct SubmitScore(pub ScoreRequest);

/// A queued request: its key, and where its answer comes.
pub(crate) type SubmittedScore = (RequestKey, oneshot::Receiver<Result<Score, RequestError>>);

/// Ends a request by the client's name for it; false when there is none.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct Cancel(pub String);

/// The client of a request has gone away.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Abandon(pub RequestKey);

/// Asks how everything is.
#[derive(Debug, Message)]
#[rtype(result = "EngineStatus")]
pub(crate) struct GetStatus;

impl Coordinator {
    fn admits(&self, id: &str) -> Result<(), RequestError> {
        let unavailable = |reason: &str| Err(RequestError::Unavailable(reason.to_string()));
        match &self.state {
            EngineState::Starting => return unavailable("the engine is starting"),
            EngineState::Draining => return unavailable("the engine is shutting down"),
            EngineState::Failed(reason) => {
                return unavailable(&format!("the engine has failed: {reason}"));
            }
            EngineState::Ready => {}
        }
        if self.requests.has_id(id) {
            return Err(RequestError::Invalid(format!("request id {id:?} is in use")));
        }
        let (waiting, limit) = (self.scheduler.waiting(), self.options.max_queue);
        if waiting >= limit + self.scheduler.free_slots() {
            return Err(RequestError::QueueFull { waiting, limit });
        }
        Ok(())
    }

    fn answer(&self, request: &GenerateRequest, max_tokens: usize) -> Result<Answer, RequestError> {
        let invalid = |message: String| RequestError::Invalid(message);
        let stop = StopMatcher::new(&request.stop).map_err(|error| invalid(error.to_string()))?;
        let decoder = self.facts.tokenizer.as_ref().map(|tokenizer| tokenizer.stream());
        if decoder.is_none() && !request.stop.is_empty() {
            return Err(invalid(
                "stop texts need a tokenizer; the checkpoint has none".to_string(),
            ));
        }
        let eos = match request.ignore_eos {
            true => Arc::new([]),
            false => Arc::clone(&self.facts.eos),
        };
        Ok(Answer::new(decoder, stop, eos, max_tokens))
    }

    fn begin(
        &mut self,
        id: String,
        work: Work,
        prompt: Vec<u32>,
        outputs: Outputs,
        chunk: usize,
        ctx: &mut Context<Self>,
    ) -> RequestKey {
        let key = self.requests.new_key();
        let request = Request::new(id, work, prompt.len(), Instant::now());
        self.requests.insert(key, request);
        self.scheduler.enqueue(Sequence::new(key, prompt, outputs, chunk));
        self.next_step(ctx);
        key
    }
}

impl Handler<Submit> for Coordinator {
    type Result = Result<Submitted, RequestError>;

    fn handle(&mut self, Submit(request): Submit, ctx: &mut Self::Context) -> Self::Result {
        self.admits(&request.id)?;
        let max_tokens = validate::generate(&request, &self.facts.bounds)?;
        let answer = Box::new(self.answer(&request, max_tokens)?);
        // Used when the request names none.
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let ends: &[u32] = if request.ignore_eos { &[] } else { &self.facts.eos };
        let sampler = Sampler::new(&request.sampling, seed, &request.prompt, ends)
            .map_err(|error| RequestError::Invalid(error.to_string()))?;
        let (outputs, sampler) = match sampler.needs_logits() {
            true => (Outputs::Logits, Some(Box::new(sampler))),
            false => (Outputs::Greedy, None),
        };
        let (events, heard) = mpsc::unbounded_channel();
        let work = Work::Generate { answer, sampler, events };
        let chunk = self.facts.bounds.max_rows;
        let key = self.begin(request.id, work, request.prompt, outputs, chunk, ctx);
        Ok((key, heard))
    }
}

impl Handler<SubmitScore> for Coordinator {
    type Result = Result<SubmittedScore, RequestError>;

    fn handle(
        &mut self,
        SubmitScore(request): SubmitScore,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        self.admits(&request.id)?;
        let chunk = validate::score(&request, &self.facts.bounds)?;
        let (reply, heard) = oneshot::channel();
        // Nothing comes before the first token, so it has no probability.
        let work = Work::Score { logprobs: vec![None], last_logits: None, reply };
        let outputs = Outputs::Score { last_logits: request.last_logits };
        let key = self.begin(request.id, work, request.ids, outputs, chunk, ctx);
        Ok((key, heard))
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = bool;

    fn handle(&mut self, Cancel(id): Cancel, ctx: &mut Self::Context) -> bool {
        let Some(key) = self.requests.key(&id) else { return false };
        self.end(key, |request, _| request.cancel(Instant::now()));
        self.after_an_end(ctx);
        true
    }
}

impl Handler<Abandon> for Coordinator {
    type Result = ();

    fn handle(&mut self, Abandon(key): Abandon, ctx: &mut Self::Context) {
        self.end(key, |request, _| {
            request.finish(FinishReason::Cancelled, String::new(), Instant::now());
        });
        self.after_an_end(ctx);
    }
}

impl Handler<GetStatus> for Coordinator {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let flags = &self.options.flags;
        // What a flag says it does wrong it can do only where there is something to act on.
        let acts = self.options.world > 1;
        let mut notes = Vec::new();
        if flags.all_reduce_skip() && !acts {
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
        MessageResult(EngineStatus {
            state: self.state.clone(),
            epoch: self.epoch,
            forward_passes: self.forward_passes,
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            ranks: ranks.collect(),
            flags: flags.non_default(),
            outputs_wrong: flags.outputs_wrong().filter(|_| acts),
            notes,
        })
    }
}
