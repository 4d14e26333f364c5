//! Whether a flag that an arm was started with has acted.
//!
//! The record this project answers once read "not the collective" off a run in which every all-reduce
//! was to be skipped: planes above a limit had taken a path the flag does not sit on, nothing was
//! skipped, and nothing showed it. Here a control names what must be counted, and a run in which it
//! was not counted is no measurement.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::counters::Counts;
use super::wave::Wave;
use crate::record::Invalid;

/// Flag that skips all-reduces.
pub const SKIP_FLAG: &str = "POCKET_ASCEND_IPC_ALLREDUCE_SKIP";
/// Flag that gives each prompt calls of its own.
pub const MERGE_FLAG: &str = "POCKET_PREFILL_MERGE";
const CALL_DELAY_FLAG: &str = "POCKET_CALL_DELAY_US";
const ROW_DELAY_FLAG: &str = "POCKET_ROW_DELAY_US";

/// All-reduces skipped, in a message.
const SKIPPED: &str = "all-reduces skipped";
/// All-reduces run, in a message.
const RUN: &str = "all-reduces run";

/// What must be counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act", content = "of")]
pub enum Act {
    /// Every all-reduce of every call is skipped on every rank, and none is run.
    SkipsAllReduces,
    /// Every all-reduce of every call is run on every rank, and none is skipped.
    RunsAllReduces,
    /// There are at least as many calls with prompts as prompts.
    OnePromptACall,
    /// Calls take this long each, on average.
    CallsTake(Duration),
    /// Calls take this long a row, on average.
    RowsTake(Duration),
    /// A series of `/metrics` rises.
    Rises(String),
    /// A series of `/metrics` stays.
    Stays(String),
}

/// A flag or a wish, and what shows that it acted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// `NAME=value`, or the option that asked for it.
    pub cause: String,
    /// What must be counted.
    pub act: Act,
}

/// What speaks against a wave on the server of an arm: it is another one, a control did not act, or a cache
/// answered.
pub fn faults(
    arm: &str,
    controls: impl Iterator<Item = Control>,
    wave: &Wave,
    before: &Counts,
    after: &Counts,
) -> Vec<Invalid> {
    let mut faults = before.changes(arm, after);
    faults.extend(controls.flat_map(|control| control.check(before, after)));
    let tokens = wave.cached_tokens();
    if tokens > 0 {
        faults.push(Invalid::PrefixCacheServed { tokens });
    }
    faults
}

/// Adds reasons that are not there yet: every round says the same of a control that does not act.
pub fn note_once(all: &mut Vec<Invalid>, reasons: Vec<Invalid>) {
    for reason in reasons {
        if !all.iter().any(|known| is_alike(known, &reason)) {
            all.push(reason);
        }
    }
}

/// Whether two reasons speak of the same counter or of the same kind of trouble.
fn is_alike(a: &Invalid, b: &Invalid) -> bool {
    match (a, b) {
        (
            Invalid::ControlDidNotAct { control: a, counter: of_a, .. },
            Invalid::ControlDidNotAct { control: b, counter: of_b, .. },
        ) => (a, of_a) == (b, of_b),
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

impl Control {
    /// What shows that this flag acts; none where nothing is counted, or where the value asks for
    /// nothing.
    pub fn of_flag(name: &str, value: &str) -> Option<Self> {
        let on = matches!(value, "1" | "true");
        let micros = || value.parse().ok().filter(|us| *us > 0).map(Duration::from_micros);
        let act = match name {
            SKIP_FLAG if on => Act::SkipsAllReduces,
            SKIP_FLAG => Act::RunsAllReduces,
            MERGE_FLAG if !on => Act::OnePromptACall,
            CALL_DELAY_FLAG => Act::CallsTake(micros()?),
            ROW_DELAY_FLAG => Act::RowsTake(micros()?),
            _ => return None,
        };
        Some(Self { cause: format!("{name}={value}"), act })
    }

    /// What did not move as it must between the two; nothing when the control acted.
    pub fn check(&self, before: &Counts, after: &Counts) -> Vec<Invalid> {
        let total = |counts: &Counts, name: &str| counts.total(name).unwrap_or(0.0);
        let series = |name: &str| (total(before, name), total(after, name));
        let grown = |name: &str| total(after, name) - total(before, name);
        match &self.act {
            Act::SkipsAllReduces => self.all_reduces(before, after, true),
            Act::RunsAllReduces => self.all_reduces(before, after, false),
            Act::OnePromptACall => {
                let prompts = grown("pocket_request_queue_time_seconds_count");
                let name = "pocket_forward_calls_total{kind=\"prefill\"}";
                let (old, new) = series(name);
                let expected = format!("a rise by at least {prompts}, the prompts computed,");
                let acted = prompts > 0.0 && new - old >= prompts;
                if acted { vec![] } else { vec![self.unmoved(name, old, new, expected)] }
            }
            Act::CallsTake(each) => {
                self.time(before, after, *each, "pocket_rows_per_call_count", "calls")
            }
            Act::RowsTake(each) => {
                self.time(before, after, *each, "pocket_rows_per_call_sum", "rows")
            }
            Act::Rises(name) | Act::Stays(name) => {
                let rises = matches!(self.act, Act::Rises(_));
                let (old, new) = series(name);
                let expected = match (after.total(name), rises) {
                    (None, _) => "a series of that name".to_owned(),
                    (Some(_), true) if new > old => return vec![],
                    (Some(_), false) if new == old => return vec![],
                    (Some(_), true) => "a rise".to_owned(),
                    (Some(_), false) => "no change".to_owned(),
                };
                vec![self.unmoved(name, old, new, expected)]
            }
        }
    }

    fn unmoved(&self, counter: &str, before: f64, after: f64, expected: String) -> Invalid {
        let (control, counter) = (self.cause.clone(), counter.to_owned());
        Invalid::ControlDidNotAct { control, counter, before, after, expected }
    }

    /// Every all-reduce of every call went the one way on every rank.
    fn all_reduces(&self, before: &Counts, after: &Counts, skips: bool) -> Vec<Invalid> {
        if after.all_reduces.len() < 2 {
            let control = self.cause.clone();
            let why = "with one rank there is no all-reduce".to_owned();
            return vec![Invalid::NothingToActOn { control, why }];
        }
        let calls = after.forward_passes.saturating_sub(before.forward_passes);
        let due = calls * after.all_reduces_per_pass;
        let (moving, still) = if skips { (SKIPPED, RUN) } else { (RUN, SKIPPED) };
        let mut wrong = Vec::new();
        let mut unmoved = |counter: &str, rank: usize, (old, new): (u64, u64), expected| {
            let counter = format!("{counter}, rank {rank},");
            wrong.push(self.unmoved(&counter, old as f64, new as f64, expected));
        };
        for (rank, new) in after.all_reduces.iter().enumerate() {
            let old = before.all_reduces.get(rank).copied().unwrap_or_default();
            let (run, skipped) = ((old.run, new.run), (old.skipped, new.skipped));
            let (moved, stayed) = if skips { (skipped, run) } else { (run, skipped) };
            if due == 0 || moved.1.checked_sub(moved.0) != Some(due) {
                let per_pass = after.all_reduces_per_pass;
                let expected = format!("a rise by {due} ({calls} calls x {per_pass})");
                unmoved(moving, rank, moved, expected);
            }
            if stayed.0 != stayed.1 {
                unmoved(still, rank, stayed, "no change".to_owned());
            }
        }
        wrong
    }

    /// The time of all calls together covers so much for each that was counted.
    fn time(
        &self,
        before: &Counts,
        after: &Counts,
        each: Duration,
        counted: &str,
        what: &str,
    ) -> Vec<Invalid> {
        let name = "pocket_forward_call_seconds_sum";
        let total = |counts: &Counts, name: &str| counts.total(name).unwrap_or(0.0);
        let (old, new) = (total(before, name), total(after, name));
        let count = total(after, counted) - total(before, counted);
        let due = count * each.as_secs_f64();
        // The sum is rounded by its own addition.
        if count > 0.0 && new - old >= due * (1.0 - 1e-9) {
            return vec![];
        }
        let expected = format!("a rise by at least {due:.3} ({count} {what} of {each:?})");
        vec![self.unmoved(name, old, new, expected)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::AllReduces;
    use super::*;

    /// Counts after some calls of 17 all-reduces, so many run and skipped on each rank.
    fn counts(calls: u64, ranks: &[(u64, u64)]) -> Counts {
        Counts {
            forward_passes: calls,
            all_reduces_per_pass: 17,
            all_reduces: ranks
                .iter()
                .map(|&(run, skipped)| AllReduces { run, skipped, ..AllReduces::default() })
                .collect(),
            ..Counts::default()
        }
    }

    fn series(all: &[(&str, f64)]) -> Counts {
        let series = all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Counts { series, ..Counts::default() }
    }

    fn skip() -> Control {
        Control::of_flag(SKIP_FLAG, "1").unwrap()
    }

    #[test]
    fn a_skip_acts_when_every_call_on_every_rank_is_skipped() {
        let before = counts(2, &[(34, 0), (34, 0)]);
        assert_eq!(skip().check(&before, &counts(5, &[(34, 51), (34, 51)])), []);
        let run = Control::of_flag(SKIP_FLAG, "0").unwrap();
        assert_eq!(run.check(&before, &counts(5, &[(85, 0), (85, 0)])), []);
        assert_eq!(run.check(&before, &counts(5, &[(34, 51), (34, 51)])).len(), 4);
    }

    /// The record's mistake: large planes go another way, and are summed all the same.
    #[test]
    fn a_skip_that_some_planes_got_around_did_not_act() {
        let before = counts(2, &[(34, 0), (34, 0)]);
        let unmoved = skip().check(&before, &counts(5, &[(51, 34), (34, 51)]));
        let said: Vec<String> = unmoved.iter().map(Invalid::to_string).collect();
        assert_eq!(
            said,
            [
                "the control POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1 did not act: all-reduces skipped, rank 0, \
                 went from 0 to 34, where a rise by 51 (3 calls x 17) was expected",
                "the control POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1 did not act: all-reduces run, rank 0, \
                 went from 34 to 51, where no change was expected",
            ]
        );
        // Nothing was skipped at all.
        assert_eq!(skip().check(&before, &counts(5, &[(85, 0), (85, 0)])).len(), 4);
        // Nothing was run either: that proves nothing.
        assert_eq!(skip().check(&before, &before).len(), 2);
    }

    #[test]
    fn a_reason_is_noted_once_for_each_counter() {
        let before = counts(2, &[(34, 0), (34, 0)]);
        let mut noted = Vec::new();
        for calls in [5, 9] {
            note_once(&mut noted, skip().check(&before, &counts(calls, &[(85, 0), (34, 0)])));
        }
        assert_eq!(noted.len(), 3, "{noted:?}");
        note_once(&mut noted, vec![Invalid::PrefixCacheServed { tokens: 1 }]);
        note_once(&mut noted, vec![Invalid::PrefixCacheServed { tokens: 2 }]);
        assert_eq!(noted.len(), 4);
    }

    #[test]
    fn a_skip_at_one_rank_has_nothing_to_act_on() {
        let unmoved = skip().check(&counts(0, &[(0, 0)]), &counts(9, &[(0, 0)]));
        let [Invalid::NothingToActOn { control, .. }] = &unmoved[..] else { panic!("{unmoved:?}") };
        assert_eq!(control, "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1");
    }

    #[test]
    fn delays_must_show_in_the_time_of_calls() {
        let before = series(&[]);
        let after = |seconds, calls, rows| {
            series(&[
                ("pocket_forward_call_seconds_sum", seconds),
                ("pocket_rows_per_call_count", calls),
                ("pocket_rows_per_call_sum", rows),
            ])
        };
        let call = Control::of_flag("POCKET_CALL_DELAY_US", "20000").unwrap();
        assert_eq!(call.check(&before, &after(0.21, 10.0, 0.0)), []);
        assert_eq!(call.check(&before, &after(0.19, 10.0, 0.0)).len(), 1);
        let row = Control::of_flag("POCKET_ROW_DELAY_US", "1000").unwrap();
        assert_eq!(row.check(&before, &after(0.11, 1.0, 100.0)), []);
        assert_eq!(row.check(&before, &after(0.09, 1.0, 100.0)).len(), 1);
        assert_eq!(row.check(&before, &before).len(), 1, "no rows prove nothing");
    }

    #[test]
    fn prompts_of_their_own_calls_are_counted() {
        let serial = Control::of_flag(MERGE_FLAG, "0").unwrap();
        let after = |calls| {
            series(&[
                ("pocket_forward_calls_total{kind=\"prefill\"}", calls),
                ("pocket_request_queue_time_seconds_count", 16.0),
            ])
        };
        assert_eq!(serial.check(&series(&[]), &after(16.0)), []);
        assert_eq!(serial.check(&series(&[]), &after(1.0)).len(), 1);
    }

    #[test]
    fn any_series_can_be_asked_to_rise_or_to_stay() {
        let control = |act| Control { cause: "--moves".to_owned(), act };
        let (low, high) = (series(&[("a_total", 1.0)]), series(&[("a_total", 2.0)]));
        let rises = control(Act::Rises("a_total".to_owned()));
        assert_eq!(rises.check(&low, &high), []);
        assert_eq!(rises.check(&low, &low).len(), 1);
        let stays = control(Act::Stays("a_total".to_owned()));
        assert_eq!(stays.check(&low, &low), []);
        assert_eq!(stays.check(&low, &high).len(), 1);
        let unknown = control(Act::Stays("b_total".to_owned())).check(&low, &low);
        assert!(unknown[0].to_string().contains("a series of that name"), "{unknown:?}");
    }

    #[test]
    fn flags_that_are_off_or_not_counted_have_no_control() {
        for (name, value) in [
            ("POCKET_CALL_DELAY_US", "0"),
            (MERGE_FLAG, "1"),
            ("POCKET_PHASE_PROFILE", "1"),
            ("POCKET_ROW_DELAY_US", "0"),
        ] {
            assert_eq!(Control::of_flag(name, value), None, "{name}={value}");
        }
    }
}
