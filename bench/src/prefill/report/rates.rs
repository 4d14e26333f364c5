//! What lengths deliver, and calls below the machine's limits.

use super::{L, R};
use crate::prefill::outcome::Prefill;
use crate::prefill::rates::LengthRate;
use crate::report::number::{estimate, number, percent};
use crate::report::{Curves, Mark, Plot, PlotError, Roofline, Scale, Section, Series, Table};

pub(super) fn rates(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
    let headings = [("tokens", R), ("fixed share", R), ("95 %", R), ("delivered TFLOP/s", R)];
    let mut table = Table::new("", &headings);
    for length in &prefill.lengths {
        let share = length.fixed_share.interval;
        table.row([
            length.tokens.to_string(),
            percent(length.fixed_share.value),
            share.map_or_else(
                || "-".to_owned(),
                |share| format!("{} to {}", percent(share.low), percent(share.high)),
            ),
            number(length.delivered_tflops),
        ]);
    }
    section.table(table);
    section.text(format!(
        "A token takes {} GFLOP in matrix products. Further tokens are computed at {} TFLOP/s (marginal). \
         The fixed share is what a prompt of one call does not spend on its tokens.",
        number(prefill.facts.flops_per_row / 1e9),
        estimate(&prefill.marginal_tflops),
    ));
    let of = |number: fn(&LengthRate) -> f64| -> Vec<(f64, f64)> {
        prefill.lengths.iter().map(|length| (length.tokens as f64, number(length))).collect()
    };
    section.plot(Plot::curves(&Curves {
        title: "Fixed share by prompt length",
        x: ("tokens", Scale::Logarithmic),
        y: ("share of time to first token", Scale::Linear),
        series: &[Series {
            name: "law of one call each",
            points: of(|length| length.fixed_share.value),
        }],
    })?);
    Ok(())
}

pub(super) fn roofline(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
    let headings = [
        ("call", L),
        ("ms", R),
        ("FLOP/byte", R),
        ("GFLOP/s", R),
        ("GB/s of weights", R),
        ("share of the limit", R),
    ];
    let limits = &prefill.limits;
    let caption = format!(
        "Limits measured beside it: {} GB/s read bandwidth, {} GFLOP/s ({})",
        number(limits.bandwidth / 1e9),
        number(limits.peak / 1e9),
        limits.peak_instructions
    );
    let mut table = Table::new(caption, &headings);
    for call in &prefill.calls {
        table.row([
            call.name.clone(),
            number(call.ms),
            number(call.flops_per_byte),
            number(call.flops_per_second / 1e9),
            number(call.bytes_per_second / 1e9),
            percent(call.share_of_limit),
        ]);
    }
    section.table(table);
    let marks = prefill.calls.iter().map(|call| Mark {
        name: &call.name,
        flops_per_byte: call.flops_per_byte,
        flops_per_second: call.flops_per_second,
    });
    let marks: Vec<Mark<'_>> = marks.collect();
    section.plot(Plot::roofline(&Roofline {
        title: "Prefill and decode below the machine's limits",
        bandwidth: limits.bandwidth,
        peak: limits.peak,
        marks: &marks,
    })?);
    section.text(
        "Only matrix products and their weights are counted, not attention, the recurrence or the KV \
         cache, so shares are lower bounds. A share above 100 % means that the limit was measured while \
         something else ran.",
    );
    Ok(())
}
