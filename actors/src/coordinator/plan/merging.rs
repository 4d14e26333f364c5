//! How many prompts share a forward call.
//!
//! Merging pays the fixed price of a call once for many requests, and makes all of them wait for the
//! last: a call of `R` rows costs `fixed + row * R`, and the requests behind it wait for it too. Where the
//! costs are known, the prompts that wait are cut, in their order, into the calls with the least mean
//! time to first token. A device whose cost is mostly fixed merges everything, one whose cost is mostly
//! per row, a CPU, hands the first tokens out early. For equal prompts of `T` tokens in all this is about
//! `sqrt(row * T / fixed)` calls.

use crate::api::{CallCost, MergeCap};

/// What is known of the costs of calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Costs {
    /// Nothing.
    Unknown,
    /// What calls of about so many rows (a power of two) cost. It takes another size to tell fixed cost
    /// from cost by row.
    OneSize(usize),
    /// Both.
    Known(CallCost),
}

/// The rule of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Merging {
    /// One request a call, the record's arm.
    Serial,
    /// As many as bring the mean time to first token down, going by what calls cost.
    Auto(Costs),
    /// At most so many rows.
    Rows(usize),
}

impl Merging {
    /// The rule that setting, flag and measured costs make.
    pub fn of(merge: bool, cap: MergeCap, costs: Costs) -> Self {
        match (merge, cap) {
            (false, _) => Self::Serial,
            (true, MergeCap::Auto) => Self::Auto(costs),
            (true, MergeCap::Rows(rows)) => Self::Rows(rows),
        }
    }

    /// How many of the prompts that wait, the first ones, may share a call. They miss `missing` rows each;
    /// a call has `budget` rows at most.
    pub fn prompts(self, missing: &[usize], budget: usize) -> usize {
        match self {
            // A single prompt after calls of many is another size, and the other way round.
            Self::Auto(Costs::OneSize(known)) => match missing.first() {
                Some(first) if bin((*first).min(budget)) == bin(known) => usize::MAX,
                _ => 1,
            },
            Self::Serial => 1,
            Self::Rows(_) | Self::Auto(Costs::Unknown) => usize::MAX,
            Self::Auto(Costs::Known(cost)) => best_prompts(cost, missing, budget),
        }
    }

    /// Most prompt rows of a call, those of its first prompt excepted.
    pub fn rows(self, budget: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.min(budget),
            Self::Serial | Self::Auto(_) => budget,
        }
    }
}

/// Prompts looked at to find the best cut; those further behind change little.
const FORESIGHT: usize = 64;

/// The prompts of the first call when all are cut into calls with the least sum of times to first token:
/// `V(i) = min over j of cost(i..j) * (prompts from i on) + V(j)`.
fn best_prompts(cost: CallCost, missing: &[usize], budget: usize) -> usize {
    let seen = &missing[..missing.len().min(FORESIGHT)];
    let price = |rows: usize| {
        let calls = rows.div_ceil(budget).max(1);
        cost.fixed_us * calls as f64 + cost.row_us * rows as f64
    };
    let mut best = vec![(0.0, 0); seen.len() + 1];
    for first in (0..seen.len()).rev() {
        let waiting = (missing.len() - first) as f64;
        let mut rows = 0;
        let mut least = (f64::INFINITY, 0);
        for (end, its) in seen.iter().enumerate().skip(first) {
            rows += its;
            let total = price(rows) * waiting + best[end + 1].0;
            // Where it makes no difference, fewer calls.
            if total <= least.0 {
                least = (total, end + 1 - first);
            }
        }
        best[first] = least;
    }
    match best[0].1 {
        all if all == seen.len() && all < missing.len() => usize::MAX,
        prompts => prompts.max(1),
    }
}

/// What calls have cost lately, by size.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallCosts {
    /// One entry a power of two of rows.
    bins: Vec<Option<Bin>>,
}

#[derive(Clone, Copy, Debug)]
struct Bin {
    rows: f64,
    us: f64,
    /// Calls of this size.
    count: f64,
    /// Calls of other sizes since the last of this one.
    age: f64,
}

/// Sizes are told apart by their power of two.
fn bin(rows: usize) -> usize {
    rows.max(1).ilog2() as usize
}

/// Share of the newest call in its bin once there were a few: some ten calls back count.
const NEWEST: f64 = 0.2;
/// Calls after which what a size has cost counts half as much beside the others: machines change.
const HALF_LIFE: f64 = 64.0;

impl CallCosts {
    /// Notes what a call of `rows` rows has taken.
    pub fn note(&mut self, rows: usize, us: f64) {
        let index = bin(rows);
        if self.bins.len() <= index {
            self.bins.resize(index + 1, None);
        }
        for bin in self.bins.iter_mut().flatten() {
            bin.age += 1.0;
        }
        let new = Bin { rows: rows as f64, us, count: 1.0, age: 0.0 };
        self.bins[index] = Some(match self.bins[index] {
            None => new,
            Some(old) => {
                let count = old.count + 1.0;
                // The first few count alike: the very first, of a cold machine, is soon outvoted.
                let share = NEWEST.max(1.0 / count);
                Bin {
                    rows: old.rows + share * (new.rows - old.rows),
                    us: old.us + share * (new.us - old.us),
                    count,
                    age: 0.0,
                }
            }
        });
    }

    /// What is known so far.
    pub fn known(&self) -> Costs {
        match (self.fit(), self.bins.iter().position(Option::is_some)) {
            (Some(cost), _) => Costs::Known(cost),
            (None, Some(bin)) => Costs::OneSize(1 << bin),
            (None, None) => Costs::Unknown,
        }
    }

    /// The line through the sizes seen, each weighted for relative error; none before two sizes were.
    pub fn fit(&self) -> Option<CallCost> {
        let seen: Vec<Bin> = self.bins.iter().flatten().copied().collect();
        if seen.len() < 2 {
            return None;
        }
        let weight =
            |bin: &Bin| (-bin.age / HALF_LIFE).exp2() / (bin.us * bin.us).max(f64::MIN_POSITIVE);
        let total: f64 = seen.iter().map(weight).sum();
        let mean =
            |of: fn(&Bin) -> f64| seen.iter().map(|bin| weight(bin) * of(bin)).sum::<f64>() / total;
        let (rows, us) = (mean(|bin| bin.rows), mean(|bin| bin.us));
        let (mut over, mut under) = (0.0, 0.0);
        for bin in &seen {
            over += weight(bin) * (bin.rows - rows) * (bin.us - us);
            under += weight(bin) * (bin.rows - rows) * (bin.rows - rows);
        }
        if under <= 0.0 {
            return None;
        }
        let row_us = (over / under).max(0.0);
        Some(CallCost { fixed_us: (us - row_us * rows).max(0.0), row_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: CallCost = CallCost { fixed_us: 204_200.0, row_us: 577.0 };
    const PER_ROW: CallCost = CallCost { fixed_us: 5_000.0, row_us: 5_000.0 };

    /// Rows of each call when `count` prompts of `length` wait.
    fn calls(merging: Merging, count: usize, length: usize, budget: usize) -> Vec<usize> {
        let (mut left, mut calls) = (count, vec![]);
        while left > 0 {
            let most = merging.prompts(&vec![length; left], budget);
            let fit = (merging.rows(budget) / length).max(1);
            let taken = left.min(most).min(fit);
            calls.push(taken * length);
            left -= taken;
        }
        calls
    }

    /// Mean time to first token of such calls.
    fn mean_ttft(cost: CallCost, calls: &[usize]) -> f64 {
        let (mut now, mut sum) = (0.0, 0.0);
        for rows in calls {
            now += cost.fixed_us + cost.row_us * *rows as f64;
            sum += now * *rows as f64;
        }
        sum / calls.iter().sum::<usize>() as f64
    }

    #[test]
    fn a_device_of_fixed_cost_merges_and_one_of_cost_by_row_does_not() {
        let auto = |cost| Merging::Auto(Costs::Known(cost));
        assert_eq!(calls(auto(RECORD), 4, 32, 8192), [128]);
        assert_eq!(calls(auto(PER_ROW), 4, 128, 8192), [128; 4]);
        assert_eq!(calls(Merging::Serial, 3, 32, 8192), [32; 3]);
        assert_eq!(calls(Merging::Auto(Costs::Unknown), 4, 32, 8192), [128]);
        let learns = |size: usize| Merging::Auto(Costs::OneSize(size)).prompts(&[32; 4], 8192);
        assert_eq!((learns(128), learns(32)), (1, usize::MAX), "another size, to learn from");
        assert_eq!(calls(Merging::Rows(64), 4, 32, 8192), [64, 64]);
        assert_eq!(calls(Merging::Rows(1), 2, 32, 8192), [32, 32], "a prompt is never kept out");
    }

    #[test]
    fn auto_is_near_the_better_arm_or_better_at_any_cost() {
        for fixed_us in [0.0, 100.0, 3_000.0, 30_000.0, 204_200.0] {
            for row_us in [10.0, 577.0, 5_000.0] {
                for length in [8, 32, 128, 322] {
                    let cost = CallCost { fixed_us, row_us };
                    let ttft = |merging| mean_ttft(cost, &calls(merging, 16, length, 8192));
                    let better = ttft(Merging::Serial).min(ttft(Merging::Rows(usize::MAX)));
                    let auto = ttft(Merging::Auto(Costs::Known(cost)));
                    assert!(auto <= better * 1.03, "{cost:?}, {length}: {auto} over {better}");
                }
            }
        }
    }

    #[test]
    fn a_long_prompt_does_not_hold_up_short_ones_that_came_first() {
        let auto = Merging::Auto(Costs::Known(PER_ROW));
        assert_eq!(auto.prompts(&[8, 8, 1024], 8192), 1);
        let cost = CallCost { fixed_us: 50_000.0, row_us: 100.0 };
        let cheap = Merging::Auto(Costs::Known(cost));
        assert_eq!(cheap.prompts(&[8, 8, 1024], 8192), 2, "T6: the long one has its own call");
        assert_eq!(cheap.prompts(&[8, 8, 8], 8192), 3);
        assert_eq!(cheap.prompts(&[], 8192), 1);
        assert_eq!(Merging::Auto(Costs::Known(RECORD)).prompts(&[8; 100], 8192), usize::MAX);
    }

    #[test]
    fn the_cost_of_a_call_is_found_again() {
        let mut costs = CallCosts::default();
        assert_eq!(costs.known(), Costs::Unknown);
        costs.note(8, RECORD.fixed_us + 8.0 * RECORD.row_us);
        assert_eq!(costs.known(), Costs::OneSize(8), "one size tells nothing of the slope");
        for rows in [1, 16, 300, 301, 322, 5152] {
            costs.note(rows, RECORD.fixed_us + rows as f64 * RECORD.row_us);
        }
        let found = costs.fit().unwrap();
        assert!((found.fixed_us / RECORD.fixed_us - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.row_us / RECORD.row_us - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn old_calls_are_forgotten() {
        let mut costs = CallCosts::default();
        for _ in 0..5 {
            costs.note(1, 900_000.0);
            costs.note(64, 900_000.0);
            costs.note(512, 900_000.0);
        }
        // The machine is faster now, and large calls do not come any more.
        for _ in 0..400 {
            costs.note(1, 1_010.0);
            costs.note(64, 1_640.0);
        }
        let found = costs.fit().unwrap();
        assert!((found.row_us - 10.0).abs() < 1.0, "{found:?}");
        assert!((found.fixed_us - 1_000.0).abs() < 20.0, "{found:?}");
    }
}
