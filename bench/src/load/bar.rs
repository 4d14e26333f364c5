//! How far a run is, on a terminal.

use std::future::Future;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::client::Client;
use super::run::{Plan, Ran};
use super::tally::{Counts, Tally};

/// Time between two looks at the counts.
const PERIOD: Duration = Duration::from_millis(100);

/// A progress bar on standard error; nothing at all where that is not a terminal. It is gone when this is
/// dropped.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    began: Instant,
}

impl Bar {
    /// A bar of `requests`; hidden ones show nothing.
    fn new(what: &str, requests: usize, hidden: bool) -> Self {
        let bar = if hidden || !stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(requests as u64)
        };
        let template = "{prefix} [{bar:20}] {pos}/{len} {elapsed}<{eta} {wide_msg}";
        // The template is fixed and valid; with another one the bar would keep its plain style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        Self { bar, began: Instant::now() }
    }

    /// Runs a plan and shows how far it is.
    pub async fn over(
        what: &str,
        plan: Plan,
        client: &Client,
        hidden: bool,
        stop: impl Future,
    ) -> Ran {
        let tally = Arc::new(Tally::default());
        let bar = Self::new(what, plan.requests.len(), hidden || plan.requests.is_empty());
        tokio::select! {
            ran = plan.run(client, &tally, stop) => ran,
            never = bar.follow(&tally) => never,
        }
    }

    /// Shows the counts until it is dropped.
    async fn follow(&self, tally: &Arc<Tally>) -> ! {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let counts = tally.counts();
            self.bar.set_position(counts.completed + counts.failed);
            self.bar.set_message(message(&counts, self.began.elapsed()));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn message(counts: &Counts, elapsed: Duration) -> String {
    let rate = counts.tokens as f64 / elapsed.as_secs_f64().max(1e-3);
    // A narrow terminal cuts the end off.
    let failed = match counts.failed {
        0 => String::new(),
        failed => format!("{failed} FAILED, "),
    };
    let ttft = counts.mean_ttft_ms.map(|ttft| format!(", TTFT {ttft:.1} ms")).unwrap_or_default();
    format!("{failed}{} open, {rate:.0} tok/s{ttft}", counts.open())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_what_matters() {
        let counts = Counts { sent: 9, completed: 4, failed: 0, tokens: 500, mean_ttft_ms: None };
        assert_eq!(message(&counts, Duration::from_secs(2)), "5 open, 250 tok/s");
        let counts = Counts { failed: 2, mean_ttft_ms: Some(12.34), ..counts };
        let shown = message(&counts, Duration::from_secs(2));
        assert_eq!(shown, "2 FAILED, 3 open, 250 tok/s, TTFT 12.3 ms");
    }
}
