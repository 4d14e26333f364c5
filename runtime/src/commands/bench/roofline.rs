//! `pocketd bench roofline`: the engine against the machine's own limits, measured in the same run.
//!
//! Decode reads every weight for each token, so its mark is the memory's read bandwidth; a long prefill
//! reuses each weight for every row, so its mark is the arithmetic peak. Only weights and matrix
//! products are counted (not the KV cache, attention or the recurrence), which makes both shares lower
//! bounds. The limits are measured before and after the engine and the better reading counts; an
//! engine beyond a limit proves the limit wrong and fails the run.

use std::fmt;

use anyhow::{Context, bail};
use pocket_actors::EngineHandle;
use pocket_actors::api::{Event, GenerateRequest, Timings};
use pocket_config::Settings;
use pocket_device::cpu::{limits, packed_bytes};
use pocket_model::forward::matrices;
use pocket_model::{ModelConfig, Shard};
use serde::Serialize;

use crate::boot;
use crate::cli::RooflineArgs;
use crate::commands::engine;
use crate::commands::output::{print_json, stdout};
use crate::failure::bad_input;

/// Share of a limit above which the limit must be wrong.
const BEYOND: f64 = 1.05;

/// Tokens in the prompt of the decode measurement: short, so that weights are all that counts.
const DECODE_PROMPT: usize = 16;

/// Work of one forward call, all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Work {
    /// Weight bytes a decode step reads.
    decode_bytes: u64,
    /// Floating-point operations of the matrix products of a prefill.
    prefill_flops: u64,
}

impl Work {
    /// Of a model over `world` ranks, for a prompt of `rows` tokens.
    fn of(config: &ModelConfig, world: usize, rows: usize) -> anyhow::Result<Work> {
        let (mut decode_bytes, mut prefill_flops) = (0, 0);
        for rank in 0..world {
            let sizes = matrices(config, &Shard::new(config, rank, world)?);
            // The embedding comes first. Tied, it is the head as well and is read whole; untied, a
            // step touches one row of it, and the head comes last.
            let (embedding, rest) = sizes.split_first().context("a model without matrices")?;
            let (head, layers) = if config.tie_word_embeddings {
                (embedding, rest)
            } else {
                rest.split_last().context("a model without a head")?
            };
            let bytes = |(outputs, inputs): &(usize, usize)| packed_bytes(*outputs, *inputs);
            decode_bytes += bytes(head) + layers.iter().map(bytes).sum::<u64>();
            let flops = |(outputs, inputs): &(usize, usize)| 2 * (outputs * inputs) as u64;
            // Only the last row goes through the head.
            prefill_flops += rows as u64 * layers.iter().map(flops).sum::<u64>() + flops(head);
        }
        Ok(Work { decode_bytes, prefill_flops })
    }
}

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Mark {
    /// What the machine can do, per second.
    limit: f64,
    /// What the engine did, per second, in its best repeat.
    engine: f64,
    /// `engine / limit`.
    share: f64,
}

impl Mark {
    fn new(limit: f64, engine: f64) -> Mark {
        Mark { limit, engine, share: engine / limit }
    }
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Roofline {
    model: String,
    tensor_parallel_size: usize,
    threads_per_rank: usize,
    prompt_tokens: usize,
    decode_tokens: usize,
    repeats: usize,
    work: Work,
    /// Best milliseconds of a prefill of `prompt_tokens`.
    prefill_ms: f64,
    /// Best milliseconds a decoded token.
    decode_ms_per_token: f64,
    /// Milliseconds a decoded token of each repeat.
    decode_samples_ms: Vec<f64>,
    /// Milliseconds of the prefill of each repeat.
    prefill_samples_ms: Vec<f64>,
    /// Bytes a second: reads of memory.
    bandwidth: Mark,
    /// Floating-point operations a second.
    flops: Mark,
    /// Instructions that reached the arithmetic peak.
    peak_instructions: String,
}

impl fmt::Display for Roofline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} ranks x {} threads, best of {}",
            self.model, self.tensor_parallel_size, self.threads_per_rank, self.repeats
        )?;
        writeln!(
            f,
            "decode   {:9.2} ms a token   {:7.2} GB/s of {:7.2} GB/s read bandwidth     {:5.1} %",
            self.decode_ms_per_token,
            self.bandwidth.engine / 1e9,
            self.bandwidth.limit / 1e9,
            self.bandwidth.share * 100.0
        )?;
        write!(
            f,
            "prefill  {:9.2} ms for {:4}   {:7.2} GFLOP/s of {:7.2} GFLOP/s {:<10} {:5.1} %",
            self.prefill_ms,
            self.prompt_tokens,
            self.flops.engine / 1e9,
            self.flops.limit / 1e9,
            self.peak_instructions,
            self.flops.share * 100.0
        )
    }
}

/// Measures limits, engine and limits again, prints the shares, and judges them.
pub fn run(settings: &Settings, args: &RooflineArgs) -> anyhow::Result<()> {
    let mut boot = boot::prepare(settings)?;
    let options = &boot.options;
    if args.prompt_tokens.max(DECODE_PROMPT) + args.decode_tokens > options.max_model_len {
        return Err(bad_input(format!(
            "--prompt-tokens {} and --decode-tokens {} do not fit the context of {} \
             (--max-model-len)",
            args.prompt_tokens, args.decode_tokens, options.max_model_len
        )));
    }
    let (world, threads_per_rank) = (options.world, options.threads_per_rank);
    let config = &boot.config;
    let (work, vocabulary) = (Work::of(config, world, args.prompt_tokens)?, config.vocab_size);
    let (model, threads) = (boot.name.clone(), world * threads_per_rank);
    boot.announce()?;

    let before = measure_limits(threads, args.limit_seconds)?;
    let (prefill, decode) = engine::with_engine(boot, async |engine: EngineHandle| {
        measure_engine(&engine, vocabulary, args).await
    })?;
    let after = measure_limits(threads, args.limit_seconds)?;

    let peak =
        if after.1.flops_per_second > before.1.flops_per_second { after.1 } else { before.1 };
    let bandwidth = before.0.max(after.0);
    let (prefill_ms, decode_ms) = (best(&prefill), best(&decode));
    let outcome = Roofline {
        model,
        tensor_parallel_size: world,
        threads_per_rank,
        prompt_tokens: args.prompt_tokens,
        decode_tokens: args.decode_tokens,
        repeats: args.repeats,
        work,
        prefill_ms,
        decode_ms_per_token: decode_ms,
        decode_samples_ms: decode,
        prefill_samples_ms: prefill,
        bandwidth: Mark::new(bandwidth, work.decode_bytes as f64 / decode_ms * 1e3),
        flops: Mark::new(peak.flops_per_second, work.prefill_flops as f64 / prefill_ms * 1e3),
        peak_instructions: peak.instructions.to_owned(),
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        use std::io::Write;
        writeln!(stdout(), "{outcome}")?;
    }
    judge(&outcome, args)
}

/// Read bandwidth in bytes a second, and the arithmetic peak.
fn measure_limits(threads: usize, seconds: f64) -> anyhow::Result<(f64, limits::FlopPeak)> {
    let bandwidth = limits::read_bandwidth(threads, seconds)?;
    tracing::info!(
        threads,
        plain_gb_s = bandwidth.plain / 1e9,
        prefetched_gb_s = bandwidth.prefetched / 1e9,
        buffer_mib = bandwidth.buffer_bytes >> 20,
        "measured the read bandwidth"
    );
    let peak = limits::fma_peak(threads, seconds)?;
    tracing::info!(
        threads,
        gflop_s = peak.flops_per_second / 1e9,
        instructions = peak.instructions,
        "measured the arithmetic peak"
    );
    Ok((bandwidth.bytes_per_second, peak))
}

/// Milliseconds of each prefill, and a token of each decode, after one unmeasured round.
async fn measure_engine(
    engine: &EngineHandle,
    vocabulary: usize,
    args: &RooflineArgs,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for round in 0..=args.repeats {
        let long = ask(engine, prompt(args.prompt_tokens, vocabulary, round), 1).await?;
        let tokens = args.decode_tokens + 1;
        let short = ask(engine, prompt(DECODE_PROMPT, vocabulary, round), tokens).await?;
        if round > 0 {
            prefill.push(long.prefill_ms);
            decode.push(short.decode_ms / args.decode_tokens as f64);
        }
    }
    Ok((prefill, decode))
}

/// Token ids spread over the vocabulary, others in each round.
fn prompt(tokens: usize, vocabulary: usize, round: usize) -> Vec<u32> {
    (0..tokens).map(|at| ((at * 7919 + round * 104_729 + 17) % vocabulary) as u32).collect()
}

async fn ask(engine: &EngineHandle, prompt: Vec<u32>, tokens: usize) -> anyhow::Result<Timings> {
    let request = GenerateRequest {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..GenerateRequest::greedy("roofline", prompt)
    };
    let mut events = engine.submit(request).await?;
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt { .. } | Event::Token { .. } | Event::Ended { .. } => {}
            Event::Finished { timings, .. } => return Ok(timings),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the engine ended in the middle of a measurement")
}

fn best(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Fails when a limit is wrong, or a share is below what was asked for.
fn judge(outcome: &Roofline, args: &RooflineArgs) -> anyhow::Result<()> {
    for (what, mark, floor) in [
        ("decode", outcome.bandwidth, args.min_decode_share),
        ("prefill", outcome.flops, args.min_prefill_share),
    ] {
        if mark.share > BEYOND {
            bail!(
                "{what} reached {:.1} % of its limit: the limit was measured wrong, the run is void",
                mark.share * 100.0
            );
        }
        if let Some(floor) = floor
            && mark.share < floor
        {
            bail!(
                "{what} reached {:.1} % of its limit, below the {:.1} % asked for",
                mark.share * 100.0,
                floor * 100.0
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> ModelConfig {
        pocket_model::Checkpoint::demo().unwrap().config().clone()
    }

    #[test]
    fn work_counts_every_weight_once_whatever_the_ranks() {
        let mut config = demo();
        let one = Work::of(&config, 1, 1).unwrap();
        // Tied: every matrix parameter is read once, two bytes, and multiplied once, two operations.
        let (bytes, flops) = (one.decode_bytes as f64, one.prefill_flops as f64);
        assert!((1.0..1.1).contains(&(bytes / flops)), "{bytes} bytes: only padding comes on top");
        let two = Work::of(&config, 2, 1).unwrap();
        assert_eq!(two.prefill_flops, one.prefill_flops);
        let long = Work::of(&config, 1, 512).unwrap();
        let head = 2 * (config.vocab_size * config.hidden_size) as u64;
        assert_eq!(long.prefill_flops - head, 512 * (one.prefill_flops - head));
        // Untied: a second vocabulary matrix exists, but a step reads one of the two.
        config.tie_word_embeddings = false;
        assert_eq!(Work::of(&config, 1, 1).unwrap(), one);
    }

    #[test]
    fn prompts_stay_inside_the_vocabulary_and_differ_by_round() {
        let prompts: Vec<_> = (0..3).map(|round| prompt(600, 640, round)).collect();
        assert!(prompts.iter().flatten().all(|id| *id < 640));
        assert_ne!(prompts[0], prompts[1]);
        assert_ne!(prompts[1], prompts[2]);
    }
}
