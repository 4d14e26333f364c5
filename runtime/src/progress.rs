//! How far loading is: a bar on a terminal, log lines elsewhere.

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

/// Shows how far the ranks are until the reports end. `observe` hears the share that is loaded.
pub async fn show_loading(
    mut reports: UnboundedReceiver<LoadProgress>,
    mut observe: impl FnMut(f64),
) {
    let display = Display::new(stderr().is_terminal());
    let mut ranks = Ranks::default();
    while let Some(report) = reports.recv().await {
        if let Some(reached) = ranks.note(report) {
            display.show(&ranks, reached);
            observe(ranks.share());
        }
    }
}

/// The latest report of every rank.
#[derive(Default)]
struct Ranks {
    latest: BTreeMap<usize, LoadProgress>,
    quarters: u64,
}

/// What changed with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    /// The whole group passed another quarter.
    quarter: bool,
}

impl Ranks {
    /// Takes a report; none when it says nothing new.
    fn note(&mut self, report: LoadProgress) -> Option<Reached> {
        if self.latest.insert(report.rank, report) == Some(report) {
            return None;
        }
        let quarters = (4 * self.loaded()).checked_div(self.total()).unwrap_or(0);
        let quarter = quarters > self.quarters;
        self.quarters = self.quarters.max(quarters);
        Some(Reached { quarter })
    }

    fn share(&self) -> f64 {
        match self.total() {
            0 => 0.0,
            total => self.loaded() as f64 / total as f64,
        }
    }

    fn loaded(&self) -> u64 {
        self.latest.values().map(|report| report.loaded).sum()
    }

    fn total(&self) -> u64 {
        self.latest.values().map(|report| report.total).sum()
    }
}

/// Where progress is shown.
enum Display {
    Bar(ProgressBar),
    Log,
}

impl Display {
    fn new(terminal: bool) -> Self {
        if !terminal {
            return Self::Log;
        }
        let template = "loading weights [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {msg}";
        let bar = BARS.add(ProgressBar::no_length());
        // The template is fixed and valid; with another one the bar would keep its plain style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self::Bar(bar)
    }

    fn show(&self, ranks: &Ranks, reached: Reached) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(ranks.total());
                bar.set_position(ranks.loaded());
                let done = ranks.latest.values().filter(|rank| rank.loaded >= rank.total).count();
                bar.set_message(format!("{done}/{} ranks", ranks.latest.len()));
            }
            Self::Log if reached.quarter => {
                let (loaded, total) = (ranks.loaded(), ranks.total());
                tracing::info!(loaded, total, ranks = ranks.latest.len(), "loading weights");
            }
            Self::Log => {}
        }
    }
}

/// The bar goes when loading ends, also when it is cut short.
impl Drop for Display {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
            BARS.remove(bar);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: usize, loaded: u64) -> LoadProgress {
        LoadProgress { rank, loaded, total: 100 }
    }

    #[test]
    fn quarters_of_the_whole_group_are_noted_once() {
        let mut ranks = Ranks::default();
        let mut note = |rank, loaded| ranks.note(report(rank, loaded)).map(|r| r.quarter);
        assert_eq!(note(0, 0), Some(false));
        assert_eq!(note(1, 0), Some(false));
        assert_eq!(note(0, 50), Some(true), "50 of 200");
        assert_eq!(note(1, 10), Some(false), "60 of 200");
        assert_eq!(note(1, 10), None, "the same again");
        assert_eq!(note(1, 100), Some(true), "150 of 200");
        assert_eq!(note(0, 100), Some(true), "all");
        assert_eq!((ranks.loaded(), ranks.total()), (200, 200));
        assert_eq!(ranks.share(), 1.0);
    }

    #[test]
    fn a_model_without_bytes_is_no_division_by_zero() {
        let mut ranks = Ranks::default();
        let report = LoadProgress { rank: 0, loaded: 0, total: 0 };
        assert_eq!(ranks.note(report), Some(Reached { quarter: false }));
        assert_eq!(ranks.share(), 0.0);
    }
}
