//! What a step's outputs become: tokens, log-probabilities, and the ends of answers.

use std::time::Instant;

use pocket_collectives::Counters;
use pocket_model::forward::Want;

use super::Coordinator;
use super::merge;
use super::plan::{Part, Planned, Purpose, RequestKey, SequenceKey};
use super::requests::{Generation, MOST_UNREAD, Request, TokenTime, Work, tell};
use super::sampling::{Chosen, RowDone};
use crate::api::{Event, FinishReason, RequestError, TokenLogprobs};
use crate::messages::{ShardStats, StepReport};
use crate::metrics::Outcome;
use crate::observe::Observed;

/// Requests that have ended and are remembered for operators.
const ENDED_KEPT: usize = 32;
/// Ranks that send a token's logit alone do not say how many tokens are likelier.
const RANK_UNKNOWN: u32 = 0;

/// What came of one output.
enum RowAnswer {
    /// A token for each answer that goes on from the row.
    Chosen(Vec<Chosen>),
    /// How likely a token of the prompt is.
    Rated(TokenLogprobs),
    /// All logits.
    Logits(Vec<f32>),
}

impl Coordinator {
    /// Gives every request what its parts of a step have brought. `rows` are the logits' rows.
    pub(super) fn serve_all(
        &mut self,
        planned: &Planned,
        reports: &[StepReport],
        rows: Vec<RowDone>,
    ) {
        let mut rows = rows.into_iter();
        for part in &planned.parts {
            // All rows of a part are taken off, also for a request that has gone and beyond one that is
            // no number: those behind it are other requests'.
            let answers: Vec<Result<RowAnswer, String>> = part
                .outputs
                .clone()
                .map(|output| answer_row(planned, part, output, reports, &mut rows))
                .collect();
            match answers.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(answers) => self.serve(part, &planned.purposes, answers),
                Err(reason) => self.end(part.key.request, Outcome::Failed, |request, id| {
                    let reason = format!("request {id:?} cannot go on: {reason}");
                    tracing::error!("{reason}");
                    request.fail(RequestError::RankFailed(reason));
                }),
            }
        }
    }

    fn serve(&mut self, part: &Part, purposes: &[Purpose], answers: Vec<RowAnswer>) {
        let key = part.key.request;
        let Some(request) = self.requests.get_mut(key) else { return };
        let mut chosen = Vec::new();
        match &mut request.work {
            Work::Score { logprobs, last_logits, .. } => {
                for answer in answers {
                    match answer {
                        RowAnswer::Rated(rated) => logprobs.push(Some(rated.logprob)),
                        RowAnswer::Logits(row) => *last_logits = Some(row),
                        RowAnswer::Chosen(_) => {}
                    }
                }
                if part.completes {
                    let now = Instant::now();
                    self.end(key, Outcome::Finished, |request, _| request.finish(now));
                }
                return;
            }
            Work::Generate(generation) => {
                for (answer, output) in answers.into_iter().zip(part.outputs.clone()) {
                    match (answer, purposes[output], &mut generation.prompt) {
                        (RowAnswer::Rated(rated), Purpose::Rate(_), Some(prompt)) => {
                            prompt.found.push(Some(rated));
                        }
                        (RowAnswer::Chosen(tokens), ..) => chosen = tokens,
                        _ => {}
                    }
                }
                if part.completes {
                    generation.tell_prompt();
                }
            }
        }
        if !part.completes {
            return;
        }
        if chosen.is_empty() {
            return self.end_without_tokens(key);
        }
        for (choice, token) in part.choices().zip(chosen) {
            self.give(SequenceKey { request: key, choice }, token);
        }
    }

    /// Gives an answer its next token.
    fn give(&mut self, key: SequenceKey, chosen: Chosen) {
        let now = Instant::now();
        let Some(request) = self.requests.get_mut(key.request) else { return };
        let Work::Generate(generation) = &mut request.work else { return };
        if generation.is_unread() {
            return self.end(key.request, Outcome::Cancelled, |request, id| {
                tracing::info!(id, "its client does not read");
                request.fail(RequestError::Unread(MOST_UNREAD));
            });
        }
        let Chosen { token, logprobs } = chosen;
        let wanted = generation.logprobs.is_some();
        let choice = &mut generation.choices[key.choice];
        if choice.ended {
            return;
        }
        choice.sampler.accept(token);
        let taken = choice.answer.take(token);
        let event = Event::Token {
            choice: key.choice,
            id: token,
            text: taken.text,
            logprobs: logprobs.filter(|_| wanted && taken.belongs),
        };
        tell(&generation.events, event);
        let Some((reason, text)) = taken.end else {
            let next = generation.next(key.choice);
            self.scheduler.push(key, token, next);
            return self.count_token(key, now);
        };
        choice.ended = true;
        request.reasons.push(reason);
        tell(&generation.events, Event::Ended { choice: key.choice, reason, text });
        let ended = generation.ended();
        self.count_token(key, now);
        self.metrics.answered(reason);
        self.scheduler.release(key);
        if ended {
            self.end_finished(key.request, now);
        }
    }

    fn count_token(&mut self, key: SequenceKey, now: Instant) {
        let Some(request) = self.requests.get_mut(key.request) else { return };
        match request.count_token(key.choice, now, self.done) {
            TokenTime::First(after) => self.metrics.first_token(after),
            TokenTime::FirstOfAnswer => self.metrics.token(),
            TokenTime::Later(after) => self.metrics.next_token(after),
        }
    }

    /// All answers of a request are complete that were to have no token.
    fn end_without_tokens(&mut self, key: RequestKey) {
        if let Some(request) = self.requests.get_mut(key)
            && let Work::Generate(generation) = &mut request.work
        {
            request.reasons = vec![FinishReason::Length; generation.choices.len()];
            generation.end_all(FinishReason::Length);
        }
        self.end_finished(key, Instant::now());
    }

    fn end_finished(&mut self, key: RequestKey, now: Instant) {
        if let Some(request) = self.requests.get(key) {
            let answers = match &request.work {
                Work::Generate(generation) => generation.choices.len(),
                Work::Score { .. } => 0,
            };
            self.metrics.timings(&request.timings(now), answers);
        }
        self.end(key, Outcome::Finished, |request, _| request.finish(now));
    }

    /// A request ends: what it holds is given back, and `say` tells its client.
    pub(super) fn end(
        &mut self,
        key: RequestKey,
        outcome: Outcome,
        say: impl FnOnce(Request, &str),
    ) {
        self.scheduler.release_request(key);
        let Some(request) = self.requests.remove(key) else { return };
        if let Some(deadline) = request.deadline() {
            self.deadlines.remove(deadline, key);
        }
        self.metrics.left(outcome);
        let _request = request.span.clone().entered();
        let ended = request.ended(&self.options.model_name, outcome.name(), Instant::now());
        tracing::debug!(
            outcome = ended.outcome,
            completion_tokens = ended.timings.completion_tokens,
            queue_ms = ended.timings.queue_ms,
            prefill_ms = ended.timings.prefill_ms,
            decode_ms = ended.timings.decode_ms,
            "request ended"
        );
        if let Some(observer) = &self.options.observer {
            observer.tell(Observed::Request(Box::new(ended.clone())));
        }
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
        let id = request.id.clone();
        if self.options.flags.all_reduce_stats() {
            for (rank, counters) in request.counters().ranks.iter().enumerate() {
                let Counters { run, skipped, bytes, wait_us } = counters;
                tracing::info!(
                    rank,
                    path = "shared memory",
                    run,
                    skipped,
                    bytes,
                    wait_us,
                    "all-reduces"
                );
            }
        }
        say(request, &id);
    }
}

impl Generation {
    /// The prompt is computed: its log-probabilities are known.
    fn tell_prompt(&mut self) {
        if let Some(prompt) = self.prompt.take() {
            tell(&self.events, Event::Prompt { logprobs: prompt.found });
        }
    }
}

fn answer_row(
    planned: &Planned,
    part: &Part,
    output: usize,
    reports: &[StepReport],
    rows: &mut impl Iterator<Item = RowDone>,
) -> Result<RowAnswer, String> {
    let want = planned.step.outputs[output].want;
    if want == Want::Logits {
        let failed = |error: pocket_model::sampler::SamplingError| error.to_string();
        return match rows.next() {
            Some(RowDone::Chosen(tokens)) => {
                let tokens: Result<Vec<Chosen>, _> = tokens.into_iter().collect();
                tokens.map(RowAnswer::Chosen).map_err(failed)
            }
            Some(RowDone::Rated(rated)) => rated.map(RowAnswer::Rated).map_err(failed),
            Some(RowDone::Logits(row)) => Ok(RowAnswer::Logits(row)),
            None => Err("a row of logits did not come".to_string()),
        };
    }
    let stats = |(rank, report): (usize, &StepReport)| {
        report.rows[output].ok_or_else(|| format!("rank {rank} left output {output} out"))
    };
    let shards: Vec<ShardStats> =
        reports.iter().enumerate().map(stats).collect::<Result<_, _>>()?;
    let rated = |logprob, rank| TokenLogprobs { logprob, rank, top: Vec::new() };
    let answer = match want {
        Want::Target(_) => merge::log_probability(&shards)
            .map(|logprob| RowAnswer::Rated(rated(logprob, RANK_UNKNOWN))),
        _ => merge::greedy(&shards).map(|(token, logprob)| {
            let chosen = Chosen { token, logprobs: Some(rated(logprob, 1)) };
            RowAnswer::Chosen(part.choices().map(|_| chosen.clone()).collect())
        }),
    };
    answer.map_err(|error| error.to_string())
}
