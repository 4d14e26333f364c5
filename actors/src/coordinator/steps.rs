//! A step's way through the coordinator: planned, sent to every rank, its reports collected. Then the
//! next. What its outputs become is [`super::serving`]'s business.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use actix::prelude::*;
use pocket_collectives::Counters;
use pocket_config::FlagSet;
use pocket_device::WorkDone;
use pocket_model::forward::{Step, Want};

use super::plan::{Merging, Part, Planned, Purpose};
use super::ranks::Stage;
use super::recording::{Clocked, Stretch};
use super::requests::{Work, grown};
use super::sampling::{RowDone, RowJob, RowsJob, Sampled};
use super::{Coordinator, Requests};
use crate::api::EngineState;
use crate::error::EngineError;
use crate::messages::{StepPlan, StepReport};
use crate::metrics::{Call, Levels};
use crate::observe::{EndedCall, Observed};
use crate::profile::{Activity, CallId};
use crate::rank_link::LinkCommand;

/// A step that is out.
pub(super) struct StepUnderWay {
    planned: Planned,
    began: Instant,
    pub reports: Vec<Option<StepReport>>,
    /// Rows that come as logits: none are expected, or not there yet, or there.
    rows: Option<Vec<RowDone>>,
    /// It is nobody's.
    self_test: bool,
    /// Where the sampling thread's time went, if it is recorded.
    pub sampled: Vec<Stretch>,
}

impl StepUnderWay {
    /// What kind of step it is.
    pub fn work(&self) -> &'static str {
        match self.self_test {
            true => "self-test",
            false => call_of(&self.planned, 0).kind(),
        }
    }

    /// Time since it went out.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// What the ranks have said.
    pub fn into_reports(self) -> Vec<StepReport> {
        self.reports.into_iter().flatten().collect()
    }

    /// Whether its reports say where the time went.
    pub fn is_profiled(&self) -> bool {
        self.reports.iter().flatten().any(|report| report.profile.is_some())
    }
}

/// A step as recordings know it.
fn call_of(planned: &Planned, epoch: u64) -> CallId {
    let Step { number, .. } = planned.step;
    CallId { epoch, step: number, rows: planned.step.rows(), prefill: planned.step.has_prompt() }
}

impl Coordinator {
    /// Sends the next step out, if there is something to do and nothing out.
    pub(super) fn next_step(&mut self, ctx: &mut Context<Self>) {
        let serving = matches!(self.state, EngineState::Ready | EngineState::Draining);
        if !serving || self.leaving || self.recovery.is_some() || self.step.is_some() {
            return;
        }
        let clock = self.clock(Activity::Plan);
        let profile = clock.is_some();
        self.leave_alone_those_who_have_gone();
        let flags = self.options.flags.clone();
        let costs = self.costs.known();
        let merging = Merging::of(flags.prefill_merge(), self.options.merge, costs);
        let planned = self.scheduler.schedule(merging);
        self.note_preempted();
        self.show_levels();
        let Some(planned) = planned else { return };
        let now = Instant::now();
        for part in &planned.parts {
            if let Some(request) = self.requests.get_mut(part.key.request)
                && request.call_begins(now)
            {
                self.metrics.began(request.prompt_tokens());
            }
        }
        let jobs = row_jobs(&planned, &self.requests);
        let rows = jobs.is_empty().then(Vec::new);
        if !jobs.is_empty() {
            let step = (self.epoch, planned.step.number);
            let job = RowsJob { step, rows: jobs, profile };
            let taken = self.sampling.as_ref().is_some_and(|s| s.take_rows(job).is_ok());
            if !taken {
                return self.sampling_gone(ctx);
            }
        }
        self.send_step(planned, flags, rows, false, clock);
    }

    /// Sends a step to every rank. `rows` are the logits' rows, if it is known already what they are;
    /// `clock` began with its planning, if that is recorded.
    pub(super) fn send_step(
        &mut self,
        planned: Planned,
        flags: FlagSet,
        rows: Option<Vec<RowDone>>,
        self_test: bool,
        clock: Option<Clocked>,
    ) {
        let Some(group) = &mut self.group else { return };
        let (step, profile) = (planned.step.clone(), clock.is_some());
        let plan = Arc::new(StepPlan { step, flags, self_test, profile });
        for rank in &mut group.ranks {
            rank.stage = Stage::Busy;
            rank.link.do_send(LinkCommand::Run(Arc::clone(&plan)));
        }
        let reports = group.ranks.iter().map(|_| None).collect();
        self.clocked(clock, call_of(&planned, self.epoch));
        let (began, sampled) = (Instant::now(), Vec::new());
        self.step = Some(StepUnderWay { planned, began, reports, rows, self_test, sampled });
    }

    /// Ends the requests nobody listens to any more, in the queue too.
    fn leave_alone_those_who_have_gone(&mut self) {
        for key in self.requests.abandoned() {
            self.cancel(key);
        }
    }

    fn note_preempted(&mut self) {
        let preempted = self.scheduler.take_preempted();
        self.metrics.preempted(preempted.len());
        for key in preempted {
            if let Some(request) = self.requests.get_mut(key.request) {
                request.preempted();
                let _request = request.span.enter();
                tracing::debug!("preempted: it waits to be computed again");
            }
        }
    }

    /// Shows what holds now.
    pub(super) fn show_levels(&self) {
        let (kv_blocks_used, kv_blocks) = self.scheduler.blocks();
        self.metrics.levels(Levels {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            slots: self.scheduler.slots(),
            kv_blocks_used,
            kv_blocks,
            cost: self.costs.fit(),
        });
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
        self.proofs.step_completed(self.epoch, Instant::now());
        match step.self_test {
            true => self.tested(step, ctx),
            false => self.commit(step),
        }
        self.next_step(ctx);
        self.stop_if_drained(ctx);
    }

    fn commit(&mut self, mut step: StepUnderWay) {
        let call = call_of(&step.planned, self.epoch);
        // What is logged on the way names the step.
        let _step = tracing::info_span!("step", epoch = call.epoch, number = call.step).entered();
        let took = step.began.elapsed();
        let clock = step.is_profiled().then(|| self.clock(Activity::Serve)).flatten();
        self.record_step(&mut step, call, took);
        let StepUnderWay { planned, reports, rows, .. } = step;
        let reports: Vec<StepReport> = reports.into_iter().flatten().collect();
        let rows_computed = call.rows;
        tracing::debug!(
            rows = rows_computed,
            segments = planned.parts.len(),
            // What is left of the whole is the way there and back, and sampling.
            slowest_rank_us = reports.iter().map(|report| report.elapsed_us).max(),
            whole_us = took.as_micros() as u64,
            "step done"
        );
        self.costs.note(rows_computed, took.as_secs_f64() * 1e6);
        self.restarts.step_completed();
        self.done.calls += 1;
        self.done.rows += rows_computed as u64;
        let (spent, work) = self.count(&reports);
        let prefill_rows = planned.prefill_rows;
        if let Some(observer) = &self.options.observer {
            let prefill_segments = planned.parts.iter().filter(|part| part.prompt).count();
            observer.tell(Observed::Call(EndedCall {
                call,
                began: SystemTime::now() - took,
                took,
                prefill_rows,
                prefill_segments,
                decode_segments: planned.parts.len() - prefill_segments,
                ranks_us: reports.iter().map(|report| report.elapsed_us).collect(),
            }));
        }
        self.metrics.call(Call { rows: rows_computed, prefill_rows, took, work });
        self.scheduler.commit(&planned);
        // Several answers of a request may be in it; to the request it is one call.
        let mut parts: Vec<&Part> = planned.parts.iter().collect();
        parts.sort_by_key(|part| part.key);
        for of_request in parts.chunk_by(|a, b| a.key.request == b.key.request) {
            if let Some(request) = self.requests.get_mut(of_request[0].key.request) {
                request.call_ends(of_request, &spent, work);
            }
        }
        self.serve_all(&planned, &reports, rows.unwrap_or_default());
        self.clocked(clock, call);
    }

    /// Adds a step to the totals; answers what it added to each rank's, and to rank 0's work.
    fn count(&mut self, reports: &[StepReport]) -> (Vec<Counters>, WorkDone) {
        let (all, work) = self.note_counters(reports);
        for (rank, spent) in all.iter().enumerate() {
            self.metrics.all_reduces(rank, spent);
        }
        (all, work)
    }

    /// Notes where the ranks' own counters stand; answers what a step added to each rank's, and to rank
    /// 0's work.
    pub(super) fn note_counters(&mut self, reports: &[StepReport]) -> (Vec<Counters>, WorkDone) {
        let Some(group) = &mut self.group else { return Default::default() };
        let mut work = WorkDone::default();
        let mut all = Vec::with_capacity(reports.len());
        for (rank, (view, report)) in group.ranks.iter_mut().zip(reports).enumerate() {
            if rank == 0 {
                work = report.work - view.work;
            }
            all.push(grown(&view.counters, &report.counters));
            view.counters = report.counters;
            view.work = report.work;
        }
        (all, work)
    }
}

/// What the sampling thread is to do with the rows that come to it, in the order of the outputs.
fn row_jobs(planned: &Planned, requests: &Requests) -> Vec<RowJob> {
    let mut jobs = Vec::new();
    for part in &planned.parts {
        let work = requests.get(part.key.request).map(|request| &request.work);
        for output in part.outputs.clone() {
            if planned.step.outputs[output].want == Want::Logits {
                jobs.push(row_job(part, work, planned.purposes[output]));
            }
        }
    }
    jobs
}

fn row_job(part: &Part, work: Option<&Work>, purpose: Purpose) -> RowJob {
    let Some(Work::Generate(generation)) = work else { return RowJob::Keep };
    match purpose {
        Purpose::Rate(token) => {
            let top = generation.prompt.as_ref().map_or(0, |prompt| prompt.top);
            RowJob::Rate { token, top }
        }
        Purpose::Next => {
            let sampler = |choice: usize| generation.choices[choice].sampler.clone();
            RowJob::Choose {
                samplers: part.choices().map(sampler).collect(),
                top: generation.logprobs,
            }
        }
    }
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
                step.sampled = sampled.stretches;
                self.complete_step(ctx);
            }
            Err(reason) => {
                let error = EngineError::RankFailed(reason.clone());
                self.fail(reason, None, error, ctx);
            }
        }
    }
}
