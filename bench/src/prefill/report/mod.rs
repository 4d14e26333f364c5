//! The report of a decomposition.

mod control;
mod law;
mod merging;
mod rates;

use super::outcome::{Drift, Prefill};
use crate::record::Record;
use crate::report::number::{counted, estimated_ratio, interval, number, percent, ratio};
use crate::report::{PlotError, Report, Section, Side};
use crate::stats::Coefficient;

const L: Side = Side::Left;
const R: Side = Side::Right;

/// A change of times over a measurement that is worth a word, as a share.
const WORTH_SAYING: f64 = 0.001;

/// The whole of it.
pub fn report(record: &Record<Prefill>) -> Result<Report, PlotError> {
    let prefill = &record.result;
    let mut report = Report::of(record, "What a prefill call costs");
    introduce(&mut report, prefill);
    law::laws(report.section("The law"), prefill)?;
    law::points(report.section("The points"), prefill);
    merging::merging(report.section("Merging a wave"), prefill)?;
    if let Some(control) = &prefill.control {
        control::negative_control(report.section("The negative control"), prefill, control);
    }
    rates::rates(report.section("Fixed share and arithmetic rate"), prefill)?;
    rates::roofline(report.section("Below the machine's limits"), prefill)?;
    method(report.section("Method and drift"), prefill);
    Ok(report)
}

fn introduce(report: &mut Report, prefill: &Prefill) {
    let Prefill { facts, joint, merge, .. } = prefill;
    let law = &joint.weighted;
    report.introduce(format!(
        "{}, {} x {}: a forward call costs {} ms, a token {} us, a request {} ms \
         besides (weighted joint fit). A wave of {} prompts and {} tokens in {} instead of {} is \
         {} as fast; the law says {}.",
        facts.model,
        counted(facts.tensor_parallel_size, "rank"),
        counted(facts.threads_per_rank, "thread"),
        short(law.per_call_ms()),
        short(law.per_token_us()),
        law.constant_ms().map_or_else(|| "no".to_owned(), short),
        merge.prompt_tokens.len(),
        merge.prompt_tokens.iter().sum::<u64>(),
        calls(merge.merged.calls),
        number(merge.serial.calls),
        ratio(&merge.wave_gain),
        estimated_ratio(&merge.by_joint.prediction.wave_gain),
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
    let rounds = counted(rounds, "round");
    section.text(format!(
        "{servers}. Every point was measured once in each of {rounds}, in a new order each time, with \
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
