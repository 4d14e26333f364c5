//! `pocketd bench wave`: what merging a wave of requests into one forward call buys and costs.
//!
//! Three engines are started that differ in one thing only: one merges every prompt that waits into one
//! call, one picks the cut itself (`auto`), one makes a call for each request, as the record's engine
//! did. They are offered the same waves in turn, several times. What a call of one prompt's rows and a
//! call of all the wave's rows (in one prompt, or as few as the context allows) cost is measured in the
//! same run, and says what the waves should have taken.

use std::fmt;
use std::io::Write;
use std::time::Instant;

use anyhow::bail;
use futures_util::future::try_join_all;
use pocket_actors::api::{CallCost, Event, GenerateRequest, MergeCap};
use pocket_actors::{EngineHandle, RequestStream};
use pocket_config::{PrefillBudget, Settings};
use serde::Serialize;

use super::prompts;
use crate::boot::{self, Boot};
use crate::cli::WaveArgs;
use crate::commands::engine;
use crate::commands::output::{print_json, stdout};
use crate::failure::bad_input;

/// How prompts are put into calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    /// All in one call.
    Merged,
    /// As the scheduler sees fit.
    Auto,
    /// One call a request.
    Serial,
}

const ARMS: [Arm; 3] = [Arm::Merged, Arm::Auto, Arm::Serial];

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Arm::Merged => "merged",
            Arm::Auto => "auto",
            Arm::Serial => "serial",
        })
    }
}

/// One wave through one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Wave {
    /// Forward calls it took.
    calls: u64,
    /// From the offer to the last first token, milliseconds.
    wave_ms: f64,
    /// Mean time to first token, milliseconds.
    mean_ttft_ms: f64,
}

/// All waves of one length through one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ArmOutcome {
    arm: Arm,
    /// The middle one of the rounds, by each measure.
    median: Wave,
    /// What the measured costs of calls say it takes; not for `auto`, whose cut is its own.
    predicted_ms: Option<f64>,
    rounds: Vec<Wave>,
}

/// One length of prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LengthOutcome {
    prompt_tokens: usize,
    /// A call with one prompt, milliseconds.
    one_prompt_ms: f64,
    /// A call with as many rows as the wave has, milliseconds.
    all_rows_ms: f64,
    arms: Vec<ArmOutcome>,
    /// Serial wave time over merged wave time.
    merged_gain: f64,
    /// Mean time to first token of `auto` over that of the better of the other two.
    auto_over_better: f64,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Outcome {
    model: String,
    tensor_parallel_size: usize,
    threads_per_rank: usize,
    flags: Vec<String>,
    requests: usize,
    rounds: usize,
    lengths: Vec<LengthOutcome>,
    /// What the `auto` arm thinks a call costs, in the end.
    auto_cost: Option<CallCost>,
}

/// Runs all arms and prints what they took.
pub fn run(settings: &Settings, args: &WaveArgs) -> anyhow::Result<()> {
    let settings = &with_room(settings, args)?;
    let boots = ARMS.map(|arm| boot_of(settings, arm));
    let [merged, auto, serial] = boots;
    let mut boots = vec![merged?, auto?, serial?];
    let first = &boots[0];
    check_fits(first, args)?;
    let mut outcome = Outcome {
        model: first.name.clone(),
        tensor_parallel_size: first.options.world,
        threads_per_rank: first.options.threads_per_rank,
        flags: first.options.flags.non_default(),
        requests: args.requests,
        rounds: args.rounds,
        lengths: Vec::new(),
        auto_cost: None,
    };
    let (vocabulary, context) = (first.config.vocab_size, first.options.max_model_len);
    boots[0].announce()?;
    let outcome = engine::with_engines(boots, async |engines: Vec<EngineHandle>| {
        for length in &args.prompt_tokens.0 {
            outcome.lengths.push(measure(&engines, vocabulary, context, *length, args).await?);
        }
        outcome.auto_cost = engines[1].status().await.call_cost;
        Ok(outcome)
    })?;
    if args.json {
        print_json(&outcome)
    } else {
        let mut out = stdout();
        write!(out, "{outcome}")?;
        Ok(out.flush()?)
    }
}

/// The settings, with a budget that does not cut the longest wave unless somebody has asked for one.
fn with_room(settings: &Settings, args: &WaveArgs) -> anyhow::Result<Settings> {
    if !settings.flags.prefill_merge() {
        return Err(bad_input(
            "bench wave compares the values of POCKET_PREFILL_MERGE; leave it unset",
        ));
    }
    let rows = longest(args) * args.requests;
    let default = Settings::default().max_num_batched_tokens;
    if settings.max_num_batched_tokens != default || rows <= default.get() {
        return Ok(settings.clone());
    }
    match PrefillBudget::with_room_for(rows) {
        Some(budget) => Ok(Settings { max_num_batched_tokens: budget, ..settings.clone() }),
        None => Err(bad_input(format!(
            "a wave of {} prompts of {} tokens has {rows}; no forward call has room for so many",
            args.requests,
            longest(args)
        ))),
    }
}

fn longest(args: &WaveArgs) -> usize {
    args.prompt_tokens.0.iter().copied().max().unwrap_or_default()
}

fn boot_of(settings: &Settings, arm: Arm) -> anyhow::Result<Boot> {
    let mut boot = boot::prepare_to_serve(settings)?;
    boot.options.merge = match arm {
        Arm::Merged | Arm::Serial => MergeCap::Rows(usize::MAX),
        Arm::Auto => MergeCap::Auto,
    };
    let merge = if arm == Arm::Serial { "0" } else { "1" };
    boot.options.flags.set("POCKET_PREFILL_MERGE", merge)?;
    Ok(boot)
}

/// A wave that is cut by other limits than the arms' would measure those.
fn check_fits(boot: &Boot, args: &WaveArgs) -> anyhow::Result<()> {
    let options = &boot.options;
    let longest = longest(args);
    let rows = longest * args.requests;
    if rows > options.max_num_batched_tokens {
        return Err(bad_input(format!(
            "a wave of {} prompts of {longest} tokens has {rows}, and --max-num-batched-tokens {} would \
             cut it",
            args.requests, options.max_num_batched_tokens
        )));
    }
    if args.requests > options.max_num_seqs {
        return Err(bad_input(format!(
            "a wave of {} requests needs as many slots; --max-num-seqs is {}",
            args.requests, options.max_num_seqs
        )));
    }
    if longest >= options.max_model_len {
        return Err(bad_input(format!(
            "a prompt of {longest} tokens leaves no room for an answer in the context of {} \
             (--max-model-len)",
            options.max_model_len
        )));
    }
    Ok(())
}

/// The fewest prompts that have so many rows together and fit the context, as equal as possible.
fn few_prompts(rows: usize, context: usize) -> Vec<usize> {
    let count = rows.div_ceil(context.saturating_sub(1).max(1));
    (0..count).map(|index| rows * (index + 1) / count - rows * index / count).collect()
}

async fn measure(
    engines: &[EngineHandle],
    vocabulary: usize,
    context: usize,
    length: usize,
    args: &WaveArgs,
) -> anyhow::Result<LengthOutcome> {
    let requests = args.requests;
    let mut waves: Vec<Vec<Wave>> = vec![Vec::new(); ARMS.len()];
    let (mut one, mut all) = (Vec::new(), Vec::new());
    let whole = few_prompts(length * requests, context);
    for round in 0..=args.rounds {
        // The arms take turns in being first.
        for index in (0..ARMS.len()).map(|index| (index + round) % ARMS.len()) {
            let wave = offer(&engines[index], vocabulary, &vec![length; requests], round).await?;
            // The first round warms up, and shows `auto` what calls cost.
            if round > 0 {
                waves[index].push(wave);
            }
        }
        let single = offer(&engines[0], vocabulary, &[length], round).await?.wave_ms;
        let whole = offer(&engines[0], vocabulary, &whole, round).await?.wave_ms;
        if round > 0 {
            one.push(single);
            all.push(whole);
        }
    }
    let (one_prompt_ms, all_rows_ms) = (median(one), median(all));
    let arms: Vec<ArmOutcome> = ARMS
        .into_iter()
        .zip(waves)
        .map(|(arm, rounds)| ArmOutcome {
            arm,
            median: Wave {
                calls: median(rounds.iter().map(|wave| wave.calls as f64).collect()) as u64,
                wave_ms: median(rounds.iter().map(|wave| wave.wave_ms).collect()),
                mean_ttft_ms: median(rounds.iter().map(|wave| wave.mean_ttft_ms).collect()),
            },
            predicted_ms: match arm {
                Arm::Merged => Some(all_rows_ms),
                Arm::Serial => Some(one_prompt_ms * requests as f64),
                Arm::Auto => None,
            },
            rounds,
        })
        .collect();
    let [merged, auto, serial] = &arms[..] else { bail!("there are three arms") };
    let better = merged.median.mean_ttft_ms.min(serial.median.mean_ttft_ms);
    Ok(LengthOutcome {
        prompt_tokens: length,
        one_prompt_ms,
        all_rows_ms,
        merged_gain: serial.median.wave_ms / merged.median.wave_ms,
        auto_over_better: auto.median.mean_ttft_ms / better,
        arms,
    })
}

/// Offers prompts of these lengths at once and waits for all first tokens.
async fn offer(
    engine: &EngineHandle,
    vocabulary: usize,
    lengths: &[usize],
    round: usize,
) -> anyhow::Result<Wave> {
    let before = engine.status().await.forward_passes;
    let requests = lengths.len();
    let request = |(index, length): (usize, &usize)| GenerateRequest {
        max_tokens: Some(1),
        ignore_eos: true,
        ..GenerateRequest::greedy(
            format!("wave-{index}"),
            prompts::spread(*length, vocabulary, round * requests + index),
        )
    };
    let wave: Vec<GenerateRequest> = lengths.iter().enumerate().map(request).collect();
    let began = Instant::now();
    let streams = engine.submit_all(wave).await?;
    let times = try_join_all(streams.into_iter().map(|stream| first_token_ms(stream, began)));
    let times = times.await?;
    Ok(Wave {
        calls: engine.status().await.forward_passes - before,
        wave_ms: times.iter().copied().fold(0.0, f64::max),
        mean_ttft_ms: times.iter().sum::<f64>() / requests as f64,
    })
}

async fn first_token_ms(mut stream: RequestStream, began: Instant) -> anyhow::Result<f64> {
    let mut first = None;
    while let Some(event) = stream.next().await {
        match event {
            Event::Token { .. } => first = Some(began.elapsed().as_secs_f64() * 1e3),
            Event::Failed(error) => return Err(error.into()),
            Event::Prompt { .. } | Event::Ended { .. } | Event::Finished { .. } => {}
        }
    }
    match first {
        Some(ms) => Ok(ms),
        None => bail!("the engine ended in the middle of a measurement"),
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} ranks x {} threads, waves of {} prompts, medians of {} rounds {}",
            self.model,
            self.tensor_parallel_size,
            self.threads_per_rank,
            self.requests,
            self.rounds,
            self.flags.join(" ")
        )?;
        for length in &self.lengths {
            writeln!(
                f,
                "\n{} tokens: a call with one prompt {:.2} ms, with all rows {:.2} ms",
                length.prompt_tokens, length.one_prompt_ms, length.all_rows_ms
            )?;
            writeln!(
                f,
                "{:<8}{:>7}{:>13}{:>15}{:>14}{:>10}",
                "arm", "calls", "wave ms", "mean TTFT ms", "predicted ms", "ratio"
            )?;
            for arm in &length.arms {
                let Wave { calls, wave_ms, mean_ttft_ms } = arm.median;
                write!(f, "{:<8}{calls:>7}{wave_ms:>13.2}{mean_ttft_ms:>15.2}", arm.arm)?;
                match arm.predicted_ms {
                    Some(ms) => writeln!(f, "{ms:>14.2}{:>10.3}", wave_ms / ms)?,
                    None => writeln!(f, "{:>14}{:>10}", "-", "-")?,
                }
            }
            writeln!(
                f,
                "merged wave {:.3}x faster than serial; auto's mean TTFT is {:.3} of the better arm's",
                length.merged_gain, length.auto_over_better
            )?;
        }
        if let Some(CallCost { fixed_us, row_us }) = self.auto_cost {
            writeln!(f, "\nauto: a call costs {fixed_us:.0} us and {row_us:.1} us a row")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_measured_with_as_few_prompts_as_fit() {
        assert_eq!(few_prompts(2048, 4096), [2048]);
        assert_eq!(few_prompts(5152, 2048), [1717, 1717, 1718]);
        assert_eq!(few_prompts(5, 2), [1; 5]);
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0]), 4.0);
    }
}
