//! Whether the daemon has earned that its watchdog is fed.
//!
//! A watchdog that a timer feeds barks only when the process is frozen. This one is to bark also when
//! the process lives and the work does not: when the coordinator is silent, or there are requests and no
//! step goes on.

use std::time::{Duration, Instant};

use pocket_actors::api::{EngineState, EngineStatus};
use pocket_collectives::Phase;

/// Where the work stands: it is another value whenever anything was done.
#[derive(Clone, Debug, PartialEq)]
struct Mark {
    epoch: u64,
    restarts: u64,
    forward_passes: u64,
    /// Of every rank: step, phase, layer, all-reduce, and the share of its weights.
    ranks: Vec<(u64, Phase, u32, u64, f64)>,
}

impl Mark {
    fn of(status: &EngineStatus) -> Self {
        let rank = |rank: &pocket_actors::api::RankStatus| {
            let at = &rank.progress;
            (at.step, at.phase, at.layer, at.all_reduce, rank.loaded)
        };
        Self {
            epoch: status.epoch,
            restarts: status.restarts,
            forward_passes: status.forward_passes,
            ranks: status.ranks.iter().map(rank).collect(),
        }
    }
}

/// Remembers where the work stood when the watchdog was fed last.
#[derive(Debug)]
pub struct Feeding {
    fed: Option<Mark>,
    /// What a rank may take to come back.
    recovery: Duration,
    /// Since when it does, without a change.
    recovering: Option<(Instant, Mark)>,
}

impl Feeding {
    /// For ranks that may take `recovery` to load.
    pub fn new(recovery: Duration) -> Self {
        Self { fed: None, recovery, recovering: None }
    }

    /// Whether the engine's answer, none if it gave none, is worth a feeding now; if so it counts as fed.
    pub fn earned(&mut self, status: Option<&EngineStatus>, now: Instant) -> bool {
        let Some(status) = status else { return false };
        let mark = Mark::of(status);
        let earned = match status.state {
            EngineState::Ready | EngineState::Draining => {
                self.recovering = None;
                let idle = status.running == 0 && status.waiting == 0;
                idle || self.fed.as_ref() != Some(&mark)
            }
            EngineState::Starting | EngineState::Recovering(_) => self.recovers(&mark, now),
            EngineState::Failed(_) => false,
        };
        if earned {
            self.fed = Some(mark);
        }
        earned
    }

    /// The coordinator has this limit too and then starts the ranks again, which changes the mark, or
    /// gives up: it is only a stuck one that is caught here.
    fn recovers(&mut self, mark: &Mark, now: Instant) -> bool {
        let since = match &self.recovering {
            Some((since, at)) if at == mark => *since,
            _ => {
                self.recovering = Some((now, mark.clone()));
                now
            }
        };
        now.duration_since(since) <= self.recovery
    }
}

#[cfg(test)]
mod tests {
    use pocket_actors::api::RankStatus;
    use pocket_collectives::{Counters, Progress};

    use super::*;

    fn status(state: EngineState, running: usize, step: u64) -> EngineStatus {
        let rank = RankStatus {
            rank: 0,
            pid: 1,
            state: "busy".to_owned(),
            device: "cpu".to_owned(),
            progress: Progress { step, ..Progress::default() },
            counters: Counters::default(),
            loaded: 1.0,
        };
        EngineStatus {
            state,
            epoch: 0,
            restarts: 0,
            forward_passes: 7,
            all_reduces_per_pass: 17,
            last_step_age_s: None,
            last_self_test: None,
            running,
            waiting: 0,
            kv_blocks_used: 0,
            kv_blocks: 8,
            call_cost: None,
            settings: None,
            ranks: vec![rank],
            missing: vec![],
            flags: Vec::new(),
            outputs_wrong: None,
            notes: Vec::new(),
        }
    }

    const RECOVERY: Duration = Duration::from_secs(10);

    #[test]
    fn idleness_and_steps_are_worth_it_and_a_stuck_step_is_not() {
        let (mut feeding, now) = (Feeding::new(RECOVERY), Instant::now());
        let mut earned =
            |running, step| feeding.earned(Some(&status(EngineState::Ready, running, step)), now);
        assert!(earned(0, 5) && earned(0, 5), "idle");
        assert!(!earned(1, 5), "a request, and nothing done since");
        assert!(earned(1, 6));
        assert!(!earned(1, 6) && !earned(1, 6), "stuck in a step");
        assert!(earned(1, 7), "it went on");
        assert!(earned(0, 7), "and became idle");
    }

    #[test]
    fn requests_that_only_wait_are_no_idleness() {
        let (mut feeding, now) = (Feeding::new(RECOVERY), Instant::now());
        let waiting = EngineStatus { waiting: 3, ..status(EngineState::Ready, 0, 5) };
        assert!(feeding.earned(Some(&waiting), now));
        assert!(!feeding.earned(Some(&waiting), now));
    }

    #[test]
    fn silence_and_failure_are_worth_nothing() {
        let (mut feeding, now) = (Feeding::new(RECOVERY), Instant::now());
        assert!(!feeding.earned(None, now));
        let failed = EngineState::Failed("rank 1 died".to_owned());
        assert!(!feeding.earned(Some(&status(failed, 0, 5)), now));
    }

    #[test]
    fn recovering_ranks_have_a_limit_that_every_change_renews() {
        let (mut feeding, start) = (Feeding::new(RECOVERY), Instant::now());
        let recovering = |step| status(EngineState::Recovering("rank 1 died".to_owned()), 1, step);
        let mut earned = |step, seconds| {
            feeding.earned(Some(&recovering(step)), start + Duration::from_secs(seconds))
        };
        assert!(earned(5, 0) && earned(5, 10));
        assert!(!earned(5, 11));
        assert!(earned(6, 12) && earned(6, 22));
        assert!(!earned(6, 23));
        assert!(feeding.earned(Some(&status(EngineState::Ready, 0, 6)), start));
    }
}
