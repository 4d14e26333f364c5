//! Merging a wave: predicted, and measured.

use super::{L, R, calls};
use crate::law::MergePrediction;
use crate::prefill::outcome::Prefill;
use crate::prefill::plan::Purpose;
use crate::report::number::{estimate, estimated_ratio, number, percent, ratio};
use crate::report::{Distribution, Plot, PlotError, Section, Table};

/// How near a prediction must be to be called so.
const NEAR: f64 = 0.15;

pub(super) fn merging(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
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
            estimated_ratio(wave_gain),
            percent(by.wave_gain_off),
            estimated_ratio(mean_ttft_gain),
            percent(by.mean_ttft_gain_off),
        ]);
    }
    section.table(times).table(gains);
    section.text(
        "Measured gains are geometric means of the rounds' own ratios, which a slow round moves less; they \
         need not be the quotients of the medians above.",
    );
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
