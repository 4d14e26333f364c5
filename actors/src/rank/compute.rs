//! The thread that owns the model: loads the shard, then runs steps as they are ordered, and sleeps in
//! between.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use actix::Recipient;
use pocket_collectives::{AllReduce, CollectiveError, Phase, ProgressSink, RankPort};
use pocket_config::FaultPhase;
use pocket_device::Device;
use pocket_device::cpu::{CpuDevice, CpuOptions, WeightMap};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::forward::{
    ForwardError, PassProfile, PhaseTimes, RankModel, RowResult, Step, weights_identity,
};

use super::fault::{Fault, Faulty};
use super::{Order, Report};
use crate::checkpoint;
use crate::clock::monotonic_us;
use crate::messages::{
    Assignment, FromRank, ShardStats, StepPlan, StepProfile, StepReport, WeightsAt,
};

/// Load progress is told at most this often.
const LOAD_REPORTS: Duration = Duration::from_millis(50);
/// A simulated device reports progress this often while it sleeps: it is slow, not stuck.
const DELAY_BEATS: Duration = Duration::from_millis(50);

/// Carries orders out until there can be no more. A failure is reported and ends the thread.
pub(crate) fn run(orders: &Receiver<Order>, reports: &Recipient<Report>) {
    let tell = |message| reports.do_send(Report(message));
    let mut worker = None;
    while let Ok(order) = orders.recv() {
        match order {
            Order::Load(assignment) => match Worker::load(&assignment, &tell) {
                Ok(loaded) => {
                    tell(FromRank::Ready { device: loaded.model.device().describe() });
                    worker = Some(loaded);
                }
                Err(reason) => return tell(FromRank::LoadFailed(reason)),
            },
            Order::Run(plan) => {
                let step = plan.step.number;
                let failed = |reason, waited_for_peer| {
                    tell(FromRank::StepFailed { step, reason, waited_for_peer });
                };
                let Some(worker) = &mut worker else {
                    return failed("no model is loaded".to_string(), false);
                };
                // What is logged in a step names it.
                let _step = tracing::info_span!("step", number = step).entered();
                match worker.step(&plan) {
                    Ok(report) => tell(FromRank::Done(report)),
                    // What the step has left behind in state and caches is unknown, and the peers are
                    // somewhere else: this rank cannot go on.
                    Err(error) => return failed(error.to_string(), waited_for_peer(&error)),
                }
            }
        }
    }
}

fn waited_for_peer(error: &ForwardError) -> bool {
    matches!(
        error,
        ForwardError::Collective(
            CollectiveError::Deadline { .. } | CollectiveError::Poisoned { .. }
        )
    )
}

/// A loaded rank.
struct Worker<D: Device> {
    rank: usize,
    model: RankModel<D>,
    port: RankPort,
    fault: Fault,
}

impl Worker<CpuDevice> {
    fn load(assignment: &Assignment, tell: &dyn Fn(FromRank)) -> Result<Self, String> {
        let Assignment { rank, world, .. } = *assignment;
        // First the segment: its name can then go, and nothing that happens while the weights load
        // (it may take minutes) can leave it behind.
        let deadline = Duration::from_millis(assignment.peer_deadline_ms);
        let (name, epoch) = (&assignment.segment, assignment.epoch);
        let port = RankPort::attach(name, rank, world, epoch, deadline)
            .map_err(|error| error.to_string())?;
        tell(FromRank::Attached);

        let fault = Fault::new(assignment.flags.fault(), rank);
        let began = Instant::now();
        let checkpoint = checkpoint::open(&assignment.model).map_err(|error| error.to_string())?;
        let weights = open_weights(assignment, &checkpoint)?;
        let (threads, cpus) = (assignment.threads, assignment.cpus.clone());
        let options =
            CpuOptions { threads, cpus, weights: weights.clone(), ..CpuOptions::default() };
        let device = CpuDevice::new(options).map_err(|error| error.to_string())?;
        port.progress.beat(Phase::Load);
        fault.event(FaultPhase::Load);
        let mut told = None;
        let mut progress = |loaded, total| {
            port.progress.beat(Phase::Load);
            fault.event(FaultPhase::Load);
            if loaded == total || told.is_none_or(|at: Instant| at.elapsed() >= LOAD_REPORTS) {
                told = Some(Instant::now());
                tell(FromRank::Loading { loaded, total });
            }
        };
        let (shard, limits) = (&assignment.shard, assignment.limits);
        let model = RankModel::load(device, &checkpoint, shard, limits, &mut progress)
            .map_err(|error| error.to_string())?;
        port.progress.beat(Phase::Idle);
        let seconds = began.elapsed().as_secs_f64();
        match &weights {
            Some(map) if map.was_complete() => {
                tracing::info!(seconds, "weights found where an earlier rank packed them");
            }
            _ => tracing::info!(seconds, "weights read and packed"),
        }
        let small = weights.map_or(0, |map| map.small_page_bytes());
        if small > 0 {
            tracing::warn!(
                bytes = small,
                "the system gives no huge pages for these packed weights: short steps are slower"
            );
        }
        Ok(Self { rank, model, port, fault })
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepReport, ForwardError> {
        let began = Instant::now();
        let StepPlan { step, flags, self_test, profile } = plan;
        let began_us = profile.then(monotonic_us);
        let Self { rank, model, port, fault } = self;
        let RankPort { all_reduce, progress, logits } = port;
        fault.update(flags.fault(), *rank);
        all_reduce.set_skip(flags.all_reduce_skip());
        if let Some(most) = flags.skip_ceiling() {
            all_reduce.let_larger_around_skip(most.get());
        }
        model.set_profiling(flags.phase_profile() || *profile);

        let (phase, event) = match (step.has_prompt(), self_test) {
            (_, true) => (Phase::Prefill, FaultPhase::SelfTest),
            (true, false) => (Phase::Prefill, FaultPhase::Prefill),
            (false, false) => (Phase::Decode, FaultPhase::Decode),
        };
        progress.begin_step(step.number, phase);
        fault.event(event);
        let delay = flags.call_delay().duration() + flags.row_delay().duration() * rows(step);
        sleep(delay, || progress.beat(phase));

        let mut rows = vec![None; step.outputs.len()];
        let mut take = |output: usize, result: RowResult<'_>| {
            match result {
                RowResult::Stats { argmax, max, sum_exp, target } => {
                    rows[output] = Some(ShardStats { argmax, max, sum_exp, target });
                }
                RowResult::Logits(shard) => logits.send(shard)?,
            }
            Ok(())
        };
        if *self_test {
            model.forward(step, all_reduce, progress, &mut take)?;
        } else {
            let mut faulty = Faulty { inner: all_reduce, fault };
            model.forward(step, &mut faulty, progress, &mut take)?;
        }
        progress.beat(Phase::Idle);
        let passed = model.take_profile();
        if let Some(passed) = passed.as_ref().filter(|_| flags.phase_profile()) {
            let times = PhaseTimes::of(&passed.laps);
            tracing::info!(?times, "phases of a forward call");
        }
        let profile = began_us.zip(passed).map(|(began_us, PassProfile { began: first, laps })| {
            let wait_us = first.duration_since(began).as_micros() as u64;
            Box::new(StepProfile { began_us, wait_us, laps })
        });
        let counters = AllReduce::<CpuDevice>::counters(all_reduce);
        let work = model.work();
        let elapsed_us = began.elapsed().as_micros() as u64;
        Ok(StepReport { step: step.number, rows, counters, work, elapsed_us, profile })
    }
}

/// The store the coordinator keeps for this rank, if it does: of this checkpoint as it is now.
fn open_weights(
    assignment: &Assignment,
    checkpoint: &Checkpoint,
) -> Result<Option<WeightMap>, String> {
    let Some(WeightsAt { path, identity }) = &assignment.weights else { return Ok(None) };
    if *identity != weights_identity(checkpoint, &assignment.shard) {
        return Err(format!(
            "the weight files of {} are not those the daemon started with; start it again",
            checkpoint.describe()
        ));
    }
    WeightMap::open(path, *identity).map(Some).map_err(|error| error.to_string())
}

fn rows(step: &Step) -> u32 {
    // A step that large would not fit its frame.
    u32::try_from(step.rows()).unwrap_or(u32::MAX)
}

/// Sleeps, beating all along.
fn sleep(mut time: Duration, beat: impl Fn()) {
    while !time.is_zero() {
        let piece = time.min(DELAY_BEATS);
        std::thread::sleep(piece);
        beat();
        time -= piece;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use pocket_collectives::{SegmentOwner, SegmentSpec};
    use pocket_config::FlagSet;
    use pocket_device::cpu::{WeightStore, weight_store_bytes};
    use pocket_model::forward::{ModelLimits, matrices};
    use pocket_model::shard::Shard;

    use super::*;
    use crate::api::ModelSource;

    fn assignment(segment: &SegmentOwner, weights: WeightsAt) -> Assignment {
        Assignment {
            rank: 0,
            world: 1,
            model: ModelSource::Demo,
            shard: Shard::new(Checkpoint::demo().unwrap().config(), 0, 1).unwrap(),
            limits: ModelLimits {
                max_model_len: 64,
                max_rows: 64,
                slots: 1,
                kv_blocks: 1,
                kv_dtype: Default::default(),
            },
            threads: 1,
            cpus: None,
            weights: Some(weights),
            segment: segment.name().to_string(),
            epoch: 1,
            peer_deadline_ms: 1000,
            flags: FlagSet::default(),
        }
    }

    #[test]
    fn a_rank_packs_into_the_store_it_is_told_of_and_the_next_one_finds_its_weights() {
        let checkpoint = Checkpoint::demo().unwrap();
        let shard = Shard::new(checkpoint.config(), 0, 1).unwrap();
        let identity = weights_identity(&checkpoint, &shard);
        let bytes = weight_store_bytes(&matrices(checkpoint.config(), &shard));
        let store = WeightStore::create(bytes, identity).unwrap();
        let load = |identity| {
            let run_id = uuid::Uuid::new_v4().simple().to_string();
            let segment =
                SegmentOwner::create(&SegmentSpec { world: 1, epoch: 1, run_id }).unwrap();
            let told = RefCell::new(Vec::new());
            let weights = WeightsAt { path: store.path(), identity };
            Worker::load(&assignment(&segment, weights), &|message| told.borrow_mut().push(message))
                .map(|_| told.into_inner())
        };
        let refused = load([7; 32]).unwrap_err();
        assert!(refused.contains("are not those the daemon started with"), "{refused}");
        for before in [false, true] {
            assert_eq!(store.is_complete(), before);
            let told = load(identity).unwrap();
            let Some(FromRank::Loading { loaded, total }) = told.last() else { panic!("{told:?}") };
            assert_eq!(loaded, total);
        }
        drop(store);
    }
}
