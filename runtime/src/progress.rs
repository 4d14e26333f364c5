//! How far something long is, loading or a download: a bar on a terminal, log lines elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use pocket_actors::LoadProgress;
use tokio::sync::mpsc::UnboundedReceiver;

/// Every bar of the process, so that log lines know what to step around.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Runs `write` while no bar is on the screen.
pub fn aside<T>(write: impl FnOnce() -> T) -> T {
    BARS.suspend(write)
}

/// Shows how far `world` ranks are until the reports end. `observe` hears the share that is loaded.
pub async fn show_loading(
    world: usize,
    mut reports: UnboundedReceiver<LoadProgress>,
    mut observe: impl FnMut(f64),
) {
    let mut meter = Meter::new("loading weights");
    let mut ranks = Ranks { world, latest: BTreeMap::new() };
    while let Some(report) = reports.recv().await {
        if ranks.note(report) {
            meter.show(ranks.loaded(), ranks.total(), &ranks.summary());
            observe(ranks.share());
        }
    }
}

/// The latest report of every rank that has reported.
struct Ranks {
    world: usize,
    latest: BTreeMap<usize, LoadProgress>,
}

impl Ranks {
    /// Takes a report; false when it says nothing new.
    fn note(&mut self, report: LoadProgress) -> bool {
        self.latest.insert(report.rank, report) != Some(report)
    }

    fn loaded(&self) -> u64 {
        self.latest.values().map(|report| report.loaded).sum()
    }

    /// Bytes of all ranks. Those not heard of yet count as the average of the others: shares are nearly
    /// equal, and a total that grew with every rank would show the first one as the whole.
    fn total(&self) -> u64 {
        let heard: u64 = self.latest.values().map(|report| report.total).sum();
        (heard * self.world as u64).checked_div(self.latest.len() as u64).unwrap_or(0)
    }

    fn share(&self) -> f64 {
        match self.total() {
            0 => 0.0,
            total => self.loaded() as f64 / total as f64,
        }
    }

    fn summary(&self) -> String {
        let done = self.latest.values().filter(|rank| rank.loaded >= rank.total).count();
        format!("{done}/{} ranks", self.world)
    }
}

/// Shows bytes done of bytes in all. The bar goes with the meter, also when that is cut short.
pub struct Meter {
    what: &'static str,
    bar: Option<ProgressBar>,
    quarters: Quarters,
}

impl Meter {
    /// A meter for `what`; nothing is shown yet.
    pub fn new(what: &'static str) -> Self {
        let bar = stderr().is_terminal().then(|| BARS.add(bar(what)));
        Self { what, bar, quarters: Quarters::default() }
    }

    /// Shows `done` of `total` bytes, with a remark.
    pub fn show(&mut self, done: u64, total: u64, remark: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(remark.to_owned());
        } else if self.quarters.passed(done, total) {
            tracing::info!(done, total, remark, "{}", self.what);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            BARS.remove(bar);
        }
    }
}

fn bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_prefix(what.to_owned());
    let template = "{prefix} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {msg}";
    // The template is fixed and valid; with another one the bar would keep its plain style.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Counts quarters of the way, so that a log gets five lines at most.
#[derive(Default)]
struct Quarters(Option<u64>);

impl Quarters {
    /// Whether another quarter is behind, or the way has begun; never while its length is unknown.
    fn passed(&mut self, done: u64, total: u64) -> bool {
        let Some(quarter) = (4 * done).checked_div(total) else { return false };
        let further = self.0.is_none_or(|last| quarter > last);
        if further {
            self.0 = Some(quarter);
        }
        further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: usize, loaded: u64) -> LoadProgress {
        LoadProgress { rank, loaded, total: 100 }
    }

    #[test]
    fn ranks_are_added_up() {
        let mut ranks = Ranks { world: 2, latest: BTreeMap::new() };
        assert_eq!((ranks.share(), ranks.total()), (0.0, 0), "no rank has reported");
        assert!(ranks.note(report(1, 100)));
        assert_eq!((ranks.share(), ranks.total()), (0.5, 200), "one is done, one not heard of");
        assert_eq!(ranks.summary(), "1/2 ranks");
        assert!(!ranks.note(report(1, 100)), "the same again");
        assert!(ranks.note(report(0, 30)));
        assert_eq!((ranks.loaded(), ranks.total()), (130, 200));
        assert!(ranks.note(report(0, 100)));
        assert_eq!((ranks.share(), ranks.summary().as_str()), (1.0, "2/2 ranks"));
    }

    #[test]
    fn a_log_gets_a_line_a_quarter() {
        let mut quarters = Quarters::default();
        let passed: Vec<u64> = (0..=100).filter(|percent| quarters.passed(*percent, 100)).collect();
        assert_eq!(passed, [0, 25, 50, 75, 100]);
    }

    #[test]
    fn a_way_of_unknown_length_has_no_quarters() {
        let mut quarters = Quarters::default();
        assert!(!quarters.passed(0, 0));
        assert!(quarters.passed(0, 8));
    }
}
