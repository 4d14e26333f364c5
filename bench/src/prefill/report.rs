//! The report of a decomposition.

use super::outcome::{Drift, Fits, NegativeControl, Prefill};
use super::plan::Purpose;
use crate::law::{LawFit, MergePrediction};
use crate::record::Record;
use crate::report::number::{estimate, interval, number, or_dash, percent, ratio};
use crate::report::{
    Curves, Distribution, FitPlot, Mark, Plot, PlotError, Report, Roofline, Scale, Section, Series,
    Side, Table,
};
use crate::stats::Coefficient;

const L: Side = Side::Left;
const R: Side = Side::Right;

/// How near a prediction must be to be called so.
const NEAR: f64 = 0.15;

/// A change of times over a measurement that is worth a word, as a share.
const WORTH_SAYING: f64 = 0.001;

/// The whole of it.
pub fn report(record: &Record<Prefill>) -> Result<Report, PlotError> {
    let prefill = &record.result;
    let mut report = Report::of(record, "What a prefill call costs");
    introduce(&mut report, prefill);
    laws(report.section("The law"), prefill)?;
    points(report.section("The points"), prefill);
    merging(report.section("Merging a wave"), prefill)?;
    if let Some(control) = &prefill.control {
        negative_control(report.section("The negative control"), prefill, control);
    }
    rates(report.section("Fixed share and arithmetic rate"), prefill)?;
    roofline(report.section("Below the machine's limits"), prefill)?;
    method(report.section("Method and drift"), prefill);
    Ok(report)
}

fn introduce(report: &mut Report, prefill: &Prefill) {
    let Prefill { facts, joint, merge, .. } = prefill;
    let law = &joint.weighted;
    report.introduce(format!(
        "{}, {} ranks x {} threads: a forward call costs {} ms, a token {} us, a request {} ms \
         besides (weighted joint fit). A wave of {} prompts and {} tokens in {} instead of {} is \
         {} as fast; the law says {}.",
        facts.model,
        facts.tensor_parallel_size,
        facts.threads_per_rank,
        short(law.per_call_ms()),
        short(law.per_token_us()),
        law.constant_ms().map_or_else(|| "no".to_owned(), short),
        merge.prompt_tokens.len(),
        merge.prompt_tokens.iter().sum::<u64>(),
        calls(merge.merged.calls),
        number(merge.serial.calls),
        ratio(&merge.wave_gain),
        estimate(&merge.by_joint.prediction.wave_gain),
    ));
}

/// So many calls, in words.
fn calls(count: f64) -> String {
    format!("{} call{}", number(count), if count == 1.0 { "" } else { "s" })
}

/// A number and its interval.
fn short(coefficient: &Coefficient) -> String {
    match coefficient.interval {
        Some(_) => format!("{} ({})", number(coefficient.value), interval(coefficient.interval)),
        None => number(coefficient.value),
    }
}

fn laws(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
    let mut numbers = Table::new(
        "Weighted fits make distances relative to the value small, ordinary ones distances in milliseconds",
        &[
            ("fit", L),
            ("ms a call", R),
            ("us a token", R),
            ("constant ms", R),
            ("R2", R),
            ("largest residual ms", R),
            ("points", R),
        ],
    );
    let mut errors = Table::new(
        "95 % intervals, and standard errors behind a plus and minus",
        &[("fit", L), ("ms a call", R), ("us a token", R), ("constant ms", R)],
    );
    let Prefill { joint, length, wave_check, .. } = prefill;
    for (name, Fits { weighted, ordinary }) in
        [("joint", joint), ("one call each", length), ("wave check", wave_check)]
    {
        for (how, fit) in [("weighted", weighted), ("ordinary", ordinary)] {
            let name = format!("{name}, {how}");
            numbers.row(law_row(&name, fit));
            errors.row(error_row(name, fit));
        }
    }
    section.table(numbers).table(errors);
    section.text(
        "The joint fit takes calls and tokens apart by prompts of one length in several calls. With one \
         call each, a request's constant is part of its call. The wave check regresses each request's \
         time on the calls and tokens that the engine ran before its first token, in waves under two \
         budgets; its requests wait for each other, so its intervals are too narrow.",
    );
    for (name, fits) in [("joint", joint), ("one call each", length)] {
        section.text(leave_one_out(name, &fits.weighted));
    }
    section.plot(Plot::fit(&FitPlot { title: "Joint fit, weighted", fit: &joint.weighted })?);
    section.plot(Plot::fit(&FitPlot { title: "One call each, weighted", fit: &length.weighted })?);
    Ok(())
}

/// A law's three numbers, the constant where it has one.
fn coefficients(fit: &LawFit) -> [Option<&Coefficient>; 3] {
    [Some(fit.per_call_ms()), Some(fit.per_token_us()), fit.constant_ms()]
}

fn law_row(name: &str, fit: &LawFit) -> Vec<String> {
    let value = |coefficient: Option<&Coefficient>| {
        coefficient.map_or_else(|| "in the call".to_owned(), |found| number(found.value))
    };
    let mut row = vec![name.to_owned()];
    row.extend(coefficients(fit).map(value));
    row.push(fit.fit.r_squared.map_or_else(|| "-".to_owned(), |share| format!("{share:.5}")));
    row.push(number(fit.fit.largest_residual()));
    row.push(fit.points.len().to_string());
    row
}

fn error_row(name: String, fit: &LawFit) -> Vec<String> {
    let error = |coefficient: Option<&Coefficient>| match coefficient {
        Some(found) => {
            format!("{} \u{b1} {}", interval(found.interval), or_dash(found.standard_error))
        }
        None => String::new(),
    };
    let mut row = vec![name];
    row.extend(coefficients(fit).map(error));
    row
}

/// Which point the cost of a call rests on most.
fn leave_one_out(name: &str, fit: &LawFit) -> String {
    let Some(largest) = fit.fit.largest_move(0) else {
        return format!("Leave one out ({name}): a parameter rests on a single point.");
    };
    let point = &fit.points[largest.point];
    format!(
        "Leave one out ({name}): the point of {} tokens in {} moves the cost of a call most, by {} ms; \
         without it, it would be {} ms.",
        point.tokens,
        calls(point.calls as f64),
        number(largest.by),
        number(fit.per_call_ms().value - largest.by),
    )
}

fn points(section: &mut Section, prefill: &Prefill) {
    let headings = [
        ("for", L),
        ("tokens", R),
        ("calls", R),
        ("TTFT p50 ms", R),
        ("mean", R),
        ("engine ms", R),
        ("fitted ms", R),
        ("residual ms", R),
        ("%", R),
    ];
    let caption = "Tokens and calls are the engine's own counts, and so is its prefill; the fit is the \
                   weighted joint one";
    let mut table = Table::new(caption, &headings);
    let residuals = &prefill.joint.weighted.fit.residuals;
    for (point, residual) in prefill.points.iter().zip(residuals) {
        table.row([
            point.purpose.name().to_owned(),
            point.tokens.to_string(),
            point.calls.to_string(),
            number(point.ttft_p50_ms),
            number(point.ttft_mean_ms),
            number(point.engine_prefill_p50_ms),
            number(residual.fitted),
            number(residual.residual),
            format!("{:.1}", residual.residual / residual.fitted * 100.0),
        ]);
    }
    section.table(table);
}

fn merging(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
    let merge = &prefill.merge;
    let mut times =
        Table::new("Until the last first token, ms", &[("", L), ("serial", R), ("merged", R)]);
    let mut gains = Table::new(
        "Serial over merged; off is what the law says over what was measured, less one",
        &[("", L), ("wave time", R), ("off", R), ("mean TTFT", R), ("off", R)],
    );
    let none = String::new;
    let measured = || "measured".to_owned();
    times.row([measured(), number(merge.serial.wave_ms), number(merge.merged.wave_ms)]);
    gains.row([measured(), ratio(&merge.wave_gain), none(), ratio(&merge.mean_ttft_gain), none()]);
    for (name, by) in [("joint law", &merge.by_joint), ("law of one call each", &merge.by_length)] {
        let MergePrediction { serial_wave_ms, merged_wave_ms, wave_gain, mean_ttft_gain, .. } =
            &by.prediction;
        let extrapolated =
            if by.prediction.extrapolated.is_empty() { "" } else { ", extrapolated" };
        let name = format!("{name}{extrapolated}");
        times.row([name.clone(), estimate(serial_wave_ms), estimate(merged_wave_ms)]);
        gains.row([
            name,
            estimate(wave_gain),
            percent(by.wave_gain_off),
            estimate(mean_ttft_gain),
            percent(by.mean_ttft_gain_off),
        ]);
    }
    section.table(times).table(gains);
    let near = merge.by_joint.wave_gain_off.abs() <= NEAR;
    section.text(format!(
        "The same wave of {} prompts of {} tokens, merged into {} and serial in {} \
         (POCKET_PREFILL_MERGE=0), in turn. The joint law's gain in wave time is {}within {:.0} % of \
         the measured one.",
        merge.prompt_tokens.len(),
        merge.prompt_tokens.first().copied().unwrap_or_default(),
        calls(merge.merged.calls),
        number(merge.serial.calls),
        if near { "" } else { "NOT " },
        NEAR * 100.0,
    ));
    for (name, by) in [("joint law", &merge.by_joint), ("law of one call each", &merge.by_length)] {
        for why in &by.prediction.extrapolated {
            section.text(format!("Extrapolated ({name}): {why}."));
        }
    }
    for (title, purpose) in
        [("TTFT in the serial wave", Purpose::Serial), ("TTFT in the merged wave", Purpose::Merged)]
    {
        let waves = prefill.measured.of_purpose(purpose);
        let samples: Vec<f64> =
            waves.flat_map(|sample| &sample.wave.prompts).map(|prompt| prompt.ttft_ms).collect();
        let x = "time to first token, ms";
        section.plot(Plot::distribution(&Distribution { title, x, samples: &samples })?);
    }
    Ok(())
}

fn negative_control(section: &mut Section, prefill: &Prefill, control: &NegativeControl) {
    section.text(format!(
        "A prompt of {} tokens takes {} ms with its {} all-reduces a call and {} ms without them: {} of \
         the time. What is left is everything but communication and waiting for peers.",
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

fn rates(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
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
    let of = |number: fn(&super::rates::LengthRate) -> f64| -> Vec<(f64, f64)> {
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

fn roofline(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
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

fn method(section: &mut Section, prefill: &Prefill) {
    let measured = &prefill.measured;
    let servers = if measured.one_at_a_time {
        "Memory does not hold all servers, so they ran one at a time, each started again in every round \
         and warmed up before it was measured"
    } else {
        "All servers, one for each distinct setting, ran beside each other for the whole time; only one \
         was asked at a time"
    };
    let rounds = measured.samples.iter().map(|sample| sample.round + 1).max().unwrap_or_default();
    section.text(format!(
        "{servers}. Every point was measured once in each of {rounds} rounds, in a new order each time, with \
         prompts of random tokens that no server had seen. Prompts of a wave go in one request, so that \
         they arrive together. Times are the client's, from the request to the first event of the answer; \
         counts are the engine's. Counters were read around every single measurement, and flags checked \
         against them.",
    ));
    section.text(drift(&prefill.drift));
    let commands = measured.counts.iter().map(|counts| counts.command.clone());
    section.commands(commands.collect());
}

fn drift(drift: &Drift) -> String {
    let Drift { seconds, change } = drift;
    let Some(change) = change else {
        return "There are too few measurements to tell whether the machine changed meanwhile."
            .to_owned();
    };
    let reach = change.interval.map_or_else(String::new, |reach| {
        format!(" ({} to {})", percent(reach.low), percent(reach.high))
    });
    let large = change.value.abs() >= WORTH_SAYING;
    let sure = change.interval.is_some_and(|reach| large && !reach.contains(0.0));
    let verdict = if sure { "The machine changed" } else { "No drift can be told from noise" };
    format!(
        "{verdict}: over {seconds:.0} s, times changed by {}{reach} of their medians. Points are spread over \
         that time, so a drift widens residuals and does not tilt the law.",
        percent(change.value),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefill::outcome::tests::planted;
    use crate::record::{Invalid, Kind};

    #[test]
    fn a_report_has_every_part_and_says_what_it_compares() {
        let mut record =
            Record::new(Kind::Prefill, vec!["pocketd bench prefill".to_owned()], planted());
        let text = report(&record).unwrap().text();
        for part in [
            "joint, weighted",
            "wave check, ordinary",
            "Leave one out (joint)",
            "law of one call each",
            "within 15 %",
            "all-reduces skipped",
            "marginal",
            "decode, 1 row",
            "No drift",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("NOT within"), "{text}");
        record.invalidate(Invalid::PrefixCacheServed { tokens: 3 });
        assert!(report(&record).unwrap().html().unwrap().contains("INVALID"));
    }
}
