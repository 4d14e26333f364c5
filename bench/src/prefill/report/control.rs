//! The negative control, and the counters that prove that it acted.

use super::{L, R};
use crate::prefill::outcome::{NegativeControl, Prefill};
use crate::report::number::{number, ratio};
use crate::report::{Section, Table};

pub(super) fn negative_control(
    section: &mut Section,
    prefill: &Prefill,
    control: &NegativeControl,
) {
    section.text(format!(
        "A prompt of {} tokens takes {} ms with its {} all-reduces a call and {} ms without them (medians): \
         {} of the time (geometric mean of the rounds' ratios). What is left is everything but communication and waiting for peers.",
        control.tokens,
        number(control.plain_ms),
        control.all_reduces_per_call,
        number(control.skipped_ms),
        ratio(&control.ratio),
    ));
    let headings = [
        ("server", L),
        ("rank", R),
        ("calls", R),
        ("all-reduces due", R),
        ("run", R),
        ("skipped", R),
    ];
    let caption =
        "Counted around the measurements of each server; due are calls x all-reduces a call";
    let mut table = Table::new(caption, &headings);
    for counts in &prefill.measured.counts {
        for (rank, (run, skipped)) in counts.run.iter().zip(&counts.skipped).enumerate() {
            table.row([
                counts.arm.clone(),
                rank.to_string(),
                counts.calls.to_string(),
                (counts.calls * counts.after.all_reduces_per_pass).to_string(),
                run.to_string(),
                skipped.to_string(),
            ]);
        }
    }
    section.table(table);
}
