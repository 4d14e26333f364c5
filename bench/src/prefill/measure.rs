//! Running a plan: every point once a round, in another order each time, its counters read around it.

use std::future::Future;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::plan::{Plan, Purpose, Task};
use crate::arms::control::{Act, Control, SKIP_FLAG, faults, note_once};
use crate::arms::{ArmCounts, ArmError, Counts, Fleet, Launch, OwnServer, RandomPrompts, Wave};
use crate::record::Invalid;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the task.
    pub task: usize,
    /// Which round, from 0.
    pub round: usize,
    /// Seconds since the first measurement.
    pub at_s: f64,
    /// What came of it.
    pub wave: Wave,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was asked.
    pub tasks: Vec<Task>,
    /// What came of it, in order of time.
    pub samples: Vec<Sample>,
    /// By arm.
    pub counts: Vec<ArmCounts>,
    /// What speaks against it.
    pub invalid: Vec<Invalid>,
    /// Whether servers ran one at a time, each started again every round, for want of memory.
    pub one_at_a_time: bool,
}

/// What a measurement says of its way.
pub enum Progress<'a> {
    /// A server loads.
    Loading {
        /// Whose.
        arm: &'a str,
        /// Share of the weights that is there, 0 to 1.
        share: f64,
    },
    /// A measurement is done.
    Done {
        /// So many.
        measured: usize,
        /// What for.
        what: &'static str,
    },
}

/// Runs a plan. The servers are left to the fleet, which its owner stops. Once `stop` is ready it ends with
/// the rounds that are complete by then, which may be none.
pub async fn run(
    plan: &Plan,
    fleet: &mut Fleet,
    vocab_size: usize,
    seed: u64,
    progress: &mut dyn FnMut(Progress<'_>),
    stop: impl Future,
) -> Result<Measured, ArmError> {
    let mut run = Run {
        plan,
        prompts: RandomPrompts::new(vocab_size, seed),
        began: Instant::now(),
        measured: Measured {
            tasks: plan.tasks.clone(),
            samples: Vec::new(),
            counts: plan.arms.iter().map(ArmCounts::of).collect(),
            invalid: Vec::new(),
            one_at_a_time: fleet.is_alone(),
        },
    };
    tokio::select! {
        rounds = run.rounds(fleet, progress) => rounds?,
        _ = stop => run.keep_whole_rounds(),
    }
    Ok(run.measured)
}

struct Run<'a> {
    plan: &'a Plan,
    prompts: RandomPrompts,
    began: Instant,
    measured: Measured,
}

impl Run<'_> {
    async fn rounds(
        &mut self,
        fleet: &mut Fleet,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), ArmError> {
        let plan = self.plan;
        if !fleet.is_alone() {
            // All of them load before anything is measured.
            for arm in 0..plan.arms.len() {
                self.server(arm, fleet, progress).await?;
            }
        }
        self.began = Instant::now();
        for round in 0..plan.repeats {
            for task in self.order(round, fleet.is_alone()) {
                self.sample(task, round, fleet, progress).await?;
                let measured = self.measured.samples.len();
                let what = plan.tasks[task].purpose.name();
                progress(Progress::Done { measured, what });
            }
        }
        Ok(())
    }

    /// What there is of an interrupted run.
    fn keep_whole_rounds(&mut self) {
        let (a_round, planned) = (self.plan.tasks.len(), self.plan.repeats);
        let done = self.measured.samples.len() / a_round;
        self.measured.samples.truncate(done * a_round);
        let what = "rounds".to_owned();
        self.measured.invalid.push(Invalid::Interrupted { done, planned, what });
    }

    /// The server of an arm, warm.
    async fn server<'f>(
        &mut self,
        arm: usize,
        fleet: &'f mut Fleet,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<&'f mut OwnServer, ArmError> {
        let launch = &self.plan.arms[arm];
        let loading = |arm: &str, share| progress(Progress::Loading { arm, share });
        let (server, fresh) = fleet.get(arm, launch, loading).await?;
        if fresh {
            self.measured.counts[arm].meet(server).await;
            // First calls of a size reserve and touch memory: the largest call, then the smallest.
            let of_arm = self.plan.tasks.iter().filter(|task| task.arm == arm);
            let sizes = of_arm.map(|task| task.prompts[0]);
            let ends = [sizes.clone().max(), sizes.min()];
            for tokens in ends.into_iter().flatten() {
                let prompts = self.prompts.of(&[tokens]);
                server.offer(&prompts, 1).await?;
            }
        }
        Ok(server)
    }

    /// One round's tasks: shuffled, so that what drifts does not look like a length; server by server
    /// where each is started for its turn.
    fn order(&mut self, round: usize, alone: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.plan.tasks.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.prompts.below(at + 1));
        }
        if alone {
            let arm = |task: &usize| self.plan.tasks[*task].arm;
            order.sort_by_key(arm);
            if round % 2 == 1 {
                order.reverse();
            }
        }
        order
    }

    async fn sample(
        &mut self,
        number: usize,
        round: usize,
        fleet: &mut Fleet,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), ArmError> {
        let plan = self.plan;
        let task = &plan.tasks[number];
        let server = self.server(task.arm, fleet, progress).await?;
        let prompts = self.prompts.of(&task.prompts);
        let before = server.counts().await?;
        let at_s = self.began.elapsed().as_secs_f64();
        let wave = server.offer(&prompts, task.tokens).await?;
        let after = server.counts().await?;
        self.note(task, &wave, before, after);
        self.measured.samples.push(Sample { task: number, round, at_s, wave });
        Ok(())
    }

    /// Sees whether what was to act has acted, and whether the server is still the same.
    fn note(&mut self, task: &Task, wave: &Wave, before: Counts, after: Counts) {
        let launch = &self.plan.arms[task.arm];
        let controls = controls(launch, task.purpose).into_iter();
        let wrong = faults(&launch.arm, controls, wave, &before, &after);
        note_once(&mut self.measured.invalid, wrong);
        self.measured.counts[task.arm].add(before, after);
    }
}

/// What must be counted in a measurement on such a server.
fn controls(launch: &Launch, purpose: Purpose) -> Vec<Control> {
    let mut all: Vec<Control> = launch.controls().collect();
    // The other side of the negative control has to be what it says, too.
    if purpose == Purpose::Plain {
        let cause = format!("{SKIP_FLAG}=0");
        all.push(Control { cause, act: Act::RunsAllReduces });
    }
    all
}
