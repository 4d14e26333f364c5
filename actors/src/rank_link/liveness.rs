//! Whether a rank that is alive also moves: a pure function of what was seen and when.
//!
//! Two things can be wrong with a process that has not ended. Its compute thread may be stuck: there is
//! work, and the progress cell in shared memory does not move. Or the whole process may be stopped: it
//! does not even answer a ping, work or none. Either is reported after the same limit.
//!
//! Only time this side has itself been awake for counts. A machine that was suspended, or a container
//! that was frozen with all its processes, wakes up with a clock far ahead and nobody at fault.

use std::time::{Duration, Instant};

/// Why a rank counts as stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// It has work and its progress does not move.
    Work(Duration),
    /// It does not answer.
    Silent(Duration),
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stall::Work(time) => write!(f, "no progress for {:.1} s", time.as_secs_f64()),
            Stall::Silent(time) => write!(f, "no answer for {:.1} s", time.as_secs_f64()),
        }
    }
}

/// What is known about one rank's movements.
#[derive(Debug)]
pub(crate) struct Liveness {
    limit: Duration,
    tick: Duration,
    last_tick: Instant,
    /// The last beat seen while there was work, and the time observed since it moved.
    work: Option<(u64, Duration)>,
    /// The ping that is out, and the time observed since.
    ping: Option<(u64, Duration)>,
    pings: u64,
}

impl Liveness {
    /// `tick` is how often [`Liveness::tick`] is to be called.
    pub fn new(limit: Duration, tick: Duration, now: Instant) -> Self {
        Self { limit, tick, last_tick: now, work: None, ping: None, pings: 0 }
    }

    /// The rank has work from now on; `beat` is where its progress stands.
    pub fn work_begins(&mut self, beat: u64) {
        self.work = Some((beat, Duration::ZERO));
    }

    /// The rank has no work.
    pub fn work_ends(&mut self) {
        self.work = None;
    }

    /// The rank answered a ping.
    pub fn pong(&mut self, number: u64) {
        if self.ping.is_some_and(|(out, _)| out == number) {
            self.ping = None;
        }
    }

    /// The number of the ping to send, when none is out.
    pub fn next_ping(&mut self) -> Option<u64> {
        if self.ping.is_some() {
            return None;
        }
        self.pings += 1;
        self.ping = Some((self.pings, Duration::ZERO));
        Some(self.pings)
    }

    /// Looks at the rank. `beat` is where its progress stands.
    pub fn tick(&mut self, beat: u64, now: Instant) -> Option<Stall> {
        let awake = now.duration_since(self.last_tick).min(2 * self.tick);
        self.last_tick = now;
        if let Some((last, still)) = &mut self.work {
            *still = if *last == beat { *still + awake } else { Duration::ZERO };
            *last = beat;
        }
        if let Some((_, silent)) = &mut self.ping {
            *silent += awake;
        }
        let over = |time: &Duration| *time >= self.limit;
        match (&self.work, &self.ping) {
            (Some((_, still)), _) if over(still) => Some(Stall::Work(*still)),
            (_, Some((_, silent))) if over(silent) => Some(Stall::Silent(*silent)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);
    const LIMIT: Duration = Duration::from_secs(5);

    struct Clock {
        now: Instant,
        liveness: Liveness,
    }

    impl Clock {
        fn new() -> Self {
            let now = Instant::now();
            Self { now, liveness: Liveness::new(LIMIT, TICK, now) }
        }

        /// The verdict after `ticks` ticks with the progress that `beat` gives.
        fn run(&mut self, ticks: u64, beat: impl Fn(u64) -> u64) -> Option<Stall> {
            (0..ticks).find_map(|tick| {
                self.now += TICK;
                self.liveness.tick(beat(tick), self.now)
            })
        }
    }

    #[test]
    fn an_idle_rank_may_stand_still() {
        assert_eq!(Clock::new().run(1000, |_| 7), None);
    }

    #[test]
    fn work_without_progress_is_a_stall_after_the_limit_and_not_before() {
        let mut clock = Clock::new();
        clock.liveness.work_begins(7);
        assert_eq!(clock.run(9, |_| 7), None);
        assert_eq!(clock.run(1, |_| 7), Some(Stall::Work(LIMIT)));
    }

    #[test]
    fn any_progress_starts_the_time_again() {
        let mut clock = Clock::new();
        clock.liveness.work_begins(0);
        // A very long step: a beat every four seconds.
        assert_eq!(clock.run(10_000, |tick| tick / 8), None);
        clock.liveness.work_ends();
        assert_eq!(clock.run(1000, |_| 7), None);
        // Old work does not count against new work.
        clock.liveness.work_begins(7);
        assert_eq!(clock.run(9, |_| 7), None);
    }

    #[test]
    fn a_process_that_answers_no_ping_is_stalled_though_it_has_no_work() {
        let mut clock = Clock::new();
        let ping = clock.liveness.next_ping().unwrap();
        assert_eq!(clock.liveness.next_ping(), None, "one is out");
        assert_eq!(clock.run(9, |_| 7), None);
        clock.liveness.pong(ping + 1);
        assert_eq!(clock.run(1, |_| 7), Some(Stall::Silent(LIMIT)), "another ping's answer");

        let mut clock = Clock::new();
        for _ in 0..100 {
            let ping = clock.liveness.next_ping().unwrap();
            assert_eq!(clock.run(9, |_| 7), None);
            clock.liveness.pong(ping);
        }
    }

    #[test]
    fn time_that_this_side_slept_through_does_not_count() {
        let mut clock = Clock::new();
        clock.liveness.work_begins(7);
        clock.liveness.next_ping().unwrap();
        clock.now += Duration::from_secs(3600);
        assert_eq!(clock.run(5, |_| 7), None);
        assert_eq!(clock.run(10, |_| 7), Some(Stall::Work(LIMIT)), "but the rank is watched again");
    }
}
