//! A step's way through the coordinator: planned, sent to every rank, its reports collected, its outputs
//! turned into tokens and log-probabilities, its requests served. Then the next.

use std::sync::Arc;
use std::time::Instant;

use actix::prelude::*;
use pocket_collectives::Counters;
use pocket_model::forward::{Step, Want};

use super::merge;
use super::plan::{Part, Planned, RequestKey};
use super::ranks::Stage;
use super::requests::{Work, grown};
use super::sampling::{RowDone, RowJob, RowsJob, Sampled};
use super::{Coordinator, Requests};
use crate::api::{EngineState, Event, FinishReason, RequestError};
use crate::error::EngineError;
use crate::messages::{ShardStats, StepPlan, StepReport};
use crate::rank_link::LinkCommand;

/// A step that is out.
pub(super) struct StepUnderWay {
    planned: Planned,
    began: Instant,
    reports: Vec<Option<StepReport>>,
    /// Rows that come as logits: none are expected, or not there yet, or there.
    rows: Option<Vec<RowDone>>,
}

impl StepUnderWay {
    /// What kind of step it is.
    pub fn work(&self) -> &'static str {
        if self.planned.step.has_prompt() { "prefill" } else { "decode" }
    }
}

/// What came of one output.
enum RowAnswer {
    Token(u32),
    LogProbability(f64),
    Logits(Vec<f32>),
}

impl Coordinator {
    /// Sends the next step out, if there is something to do and nothing out.
    pub(super) fn next_step(&mut self, ctx: &mut Context<Self>) {
        let serving = matches!(self.state, EngineState::Ready | EngineState::Draining);
        if !serving || self.leaving || self.step.is_some() {
            return;
        }
        let Some(planned) = self.scheduler.schedule() else { return };
        let now = Instant::now();
        for part in &planned.parts {
            if let Some(request) = self.requests.get_mut(part.key) {
                request.call_begins(now);
            }
        }
        let jobs = row_jobs(&planned, &self.requests);
        let rows = jobs.is_empty().then(Vec::new);
        if !jobs.is_empty() {
            let job = RowsJob { step: (self.epoch, planned.step.number), rows: jobs };
            let taken = self.sampling.as_ref().is_some_and(|s| s.take_rows(job).is_ok());
            if !taken {
                return self.sampling_gone(ctx);
            }
        }
        let Some(group) = &mut self.group else { return };
        let flags = self.options.flags.clone();
        let plan = Arc::new(StepPlan { step: planned.step.clone(), flags });
        for rank in &mut group.ranks {
            rank.stage = Stage::Busy;
            rank.link.do_send(LinkCommand::Run(Arc::clone(&plan)));
        }
        let reports = group.ranks.iter().map(|_| None).collect();
        self.step = Some(StepUnderWay { planned, began: now, reports, rows });
    }

    /// A rank is done with its step.
    pub(super) fn step_reported(
        &mut self,
        rank: usize,
        report: StepReport,
        ctx: &mut Context<Self>,
    ) {
        let Some(step) = &mut self.step else { return };
        let Step { number, outputs, .. } = &step.planned.step;
        if report.step != *number || report.rows.len() != outputs.len() {
            let reason = format!(
                "rank {rank} reported step {} with {} outputs; step {number} with {} was ordered",
                report.step,
                report.rows.len(),
                outputs.len()
            );
            let error = EngineError::RankFailed(reason.clone());
            return self.fail(reason, Some(rank), error, ctx);
        }
        step.reports[rank] = Some(report);
        self.complete_step(ctx);
    }

    fn complete_step(&mut self, ctx: &mut Context<Self>) {
        let complete = |step: &mut StepUnderWay| {
            step.rows.is_some() && step.reports.iter().all(Option::is_some)
        };
        let Some(step) = self.step.take_if(complete) else { return };
        self.commit(step);
        self.next_step(ctx);
        self.stop_if_drained(ctx);
    }

    fn commit(&mut self, step: StepUnderWay) {
        let StepUnderWay { planned, began, reports, rows } = step;
        let reports: Vec<StepReport> = reports.into_iter().flatten().collect();
        tracing::debug!(
            step = planned.step.number,
            rows = planned.step.rows(),
            // What is left of the whole is the way there and back, and sampling.
            slowest_rank_us = reports.iter().map(|report| report.elapsed_us).max(),
            whole_us = began.elapsed().as_micros() as u64,
            "step done"
        );
        let spent = self.count(&reports);
        self.scheduler.commit(&planned);
        let mut logits = rows.unwrap_or_default().into_iter();
        for part in &planned.parts {
            // Also for a request that has gone: its rows have to be taken off.
            let answers: Result<Vec<RowAnswer>, String> = part
                .outputs
                .clone()
                .map(|output| {
                    let want = planned.step.outputs[output].want;
                    answer_row(want, output, &reports, &mut logits)
                })
                .collect();
            let Some(request) = self.requests.get_mut(part.key) else { continue };
            request.call_ends(part, &spent);
            match answers {
                Ok(answers) => self.serve(part, answers),
                Err(reason) => self.end(part.key, |request, id| {
                    let reason = format!("request {id:?} cannot go on: {reason}");
                    tracing::error!("{reason}");
                    request.fail(RequestError::RankFailed(reason));
                }),
            }
        }
    }

    /// Adds a step to the totals; answers what it added to each rank's.
    fn count(&mut self, reports: &[StepReport]) -> Vec<Counters> {
        self.forward_passes += 1;
        let Some(group) = &mut self.group else { return Vec::new() };
        let ranks = group.ranks.iter_mut().zip(reports);
        ranks
            .map(|(rank, report)| {
                let spent = grown(&rank.counters, &report.counters);
                rank.counters = report.counters;
                spent
            })
            .collect()
    }

    /// Gives a request what its part of a step has brought.
    fn serve(&mut self, part: &Part, answers: Vec<RowAnswer>) {
        let now = Instant::now();
        let Some(request) = self.requests.get_mut(part.key) else { return };
        match &mut request.work {
            Work::Score { logprobs, last_logits, reply } => {
                for answer in answers {
                    match answer {
                        RowAnswer::LogProbability(value) => logprobs.push(Some(value)),
                        RowAnswer::Logits(row) => *last_logits = Some(row),
                        RowAnswer::Token(_) => {}
                    }
                }
                if part.completes || reply.is_closed() {
                    self.end(part.key, |r, _| r.finish(FinishReason::Stop, String::new(), now));
                }
            }
            Work::Generate { answer, sampler, events } => {
                let Some(RowAnswer::Token(token)) = answers.into_iter().next() else {
                    if events.is_closed() {
                        self.end(part.key, |request, _| request.cancel(now));
                    }
                    return;
                };
                let taken = answer.take(token);
                let listens = events.send(Event::Token { id: token, text: taken.text }).is_ok();
                if let Some(sampler) = sampler {
                    // The thread that chose the token did so with a copy.
                    sampler.accept(token);
                }
                request.count_token(now);
                match taken.end {
                    Some((reason, rest)) => self.end(part.key, |r, _| r.finish(reason, rest, now)),
                    None if listens => self.scheduler.push(part.key, token),
                    None => self.end(part.key, |request, _| request.cancel(now)),
                }
            }
        }
    }

    /// A request ends: what it holds is given back, and `say` tells its client.
    pub(super) fn end(
        &mut self,
        key: RequestKey,
        say: impl FnOnce(super::requests::Request, &str),
    ) {
        self.scheduler.release(key);
        let Some(request) = self.requests.remove(key) else { return };
        let id = request.id.clone();
        if self.options.flags.all_reduce_stats() {
            for (rank, counters) in request.counters().ranks.iter().enumerate() {
                let Counters { run, skipped, bytes, wait_us } = counters;
                tracing::info!(
                    request = id,
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

/// What the sampling thread is to do with the rows that come to it.
fn row_jobs(planned: &Planned, requests: &Requests) -> Vec<RowJob> {
    let mut jobs = Vec::new();
    for part in &planned.parts {
        let outputs = &planned.step.outputs[part.outputs.clone()];
        for _ in outputs.iter().filter(|output| output.want == Want::Logits) {
            jobs.push(match requests.get(part.key).map(|request| &request.work) {
                Some(Work::Generate { sampler: Some(sampler), .. }) => {
                    RowJob::Sample(sampler.clone())
                }
                _ => RowJob::Keep,
            });
        }
    }
    jobs
}

fn answer_row(
    want: Want,
    output: usize,
    reports: &[StepReport],
    logits: &mut impl Iterator<Item = RowDone>,
) -> Result<RowAnswer, String> {
    if want == Want::Logits {
        return match logits.next() {
            Some(RowDone::Token(token)) => {
                token.map(RowAnswer::Token).map_err(|error| error.to_string())
            }
            Some(RowDone::Logits(row)) => Ok(RowAnswer::Logits(row)),
            None => Err("a row of logits did not come".to_string()),
        };
    }
    let stats = |(rank, report): (usize, &StepReport)| {
        report.rows[output].ok_or_else(|| format!("rank {rank} left output {output} out"))
    };
    let shards: Vec<ShardStats> =
        reports.iter().enumerate().map(stats).collect::<Result<_, _>>()?;
    let answer = match want {
        Want::Target(_) => merge::log_probability(&shards).map(RowAnswer::LogProbability),
        _ => merge::greedy(&shards).map(RowAnswer::Token),
    };
    answer.map_err(|error| error.to_string())
}

impl Handler<Sampled> for Coordinator {
    type Result = ();

    fn handle(&mut self, sampled: Sampled, ctx: &mut Self::Context) {
        let Some(step) = &mut self.step else { return };
        if sampled.step != (self.epoch, step.planned.step.number) {
            return;
        }
        match sampled.rows {
            Ok(rows) => {
                step.rows = Some(rows);
                self.complete_step(ctx);
            }
            Err(reason) => {
                let error = EngineError::RankFailed(reason.clone());
                self.fail(reason, None, error, ctx);
            }
        }
    }
}
