//! `pocketd bench roofline`: the engine against the machine's own limits, measured in the same run.
//!
//! A call of one row reads every weight for one token, so its mark is the memory's read bandwidth; a
//! long prefill reuses each weight for every row, so its mark is the arithmetic peak; calls of a few rows
//! lie between. Only weights and matrix products are counted (not the KV cache, attention or the
//! recurrence), which makes all shares lower bounds. The limits are measured before and after the engine
//! and the better reading counts; an engine beyond a limit proves the limit wrong and fails the run.

use std::fmt;
use std::io::Write;

use anyhow::bail;
use futures_util::future::try_join_all;
use pocket_actors::api::{Event, GenerateRequest, MergeCap, Timings};
use pocket_actors::{EngineHandle, RequestStream};
use pocket_config::Settings;
use pocket_device::cpu::limits;
use pocket_model::ModelConfig;
use serde::Serialize;

use super::prompts;
use super::work::{Mark, Work};
use crate::boot::{self, Boot};
use crate::cli::RooflineArgs;
use crate::commands::engine;
use crate::commands::output::{print_json, stdout};
use crate::failure::bad_input;

/// Share of a limit above which the limit must be wrong.
const BEYOND: f64 = 1.05;

/// Tokens in the prompts of the decode measurements: short, so that weights are all that counts.
const DECODE_PROMPT: usize = 16;

/// What a forward call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// One prompt.
    Prefill,
    /// A token of each of several requests.
    Decode,
}

/// One kind of call beside the limits.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Call {
    kind: Kind,
    rows: usize,
    work: Work,
    /// Milliseconds of a call in the best repeat.
    ms: f64,
    /// In each repeat.
    samples_ms: Vec<f64>,
    /// Bytes a second: reads of weights.
    bandwidth: Mark,
    /// Floating-point operations a second.
    flops: Mark,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Roofline {
    model: String,
    tensor_parallel_size: usize,
    threads_per_rank: usize,
    repeats: usize,
    /// Instructions that reached the arithmetic peak.
    peak_instructions: String,
    calls: Vec<Call>,
    /// What a token costs alone over what it costs in a crowd.
    crowd_gain: f64,
}

impl fmt::Display for Roofline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} ranks x {} threads, best of {}",
            self.model, self.tensor_parallel_size, self.threads_per_rank, self.repeats
        )?;
        if let Some(Call { bandwidth, flops, .. }) = self.calls.first() {
            writeln!(
                f,
                "limits: {:.2} GB/s read bandwidth, {:.2} GFLOP/s {}",
                bandwidth.limit / 1e9,
                flops.limit / 1e9,
                self.peak_instructions
            )?;
        }
        writeln!(
            f,
            "{:<9}{:>6}{:>12}{:>11}{:>9}{:>11}{:>9}",
            "call", "rows", "ms", "GB/s", "share", "GFLOP/s", "share"
        )?;
        for Call { kind, rows, ms, bandwidth, flops, .. } in &self.calls {
            let name = match kind {
                Kind::Prefill => "prefill",
                Kind::Decode => "decode",
            };
            writeln!(
                f,
                "{name:<9}{rows:>6}{ms:>12.2}{:>11.2}{:>7.1} %{:>11.2}{:>7.1} %",
                bandwidth.engine / 1e9,
                bandwidth.share * 100.0,
                flops.engine / 1e9,
                flops.share * 100.0
            )?;
        }
        writeln!(f, "a token in the crowd costs {:.2}x less than alone", self.crowd_gain)
    }
}

/// Measures limits, engine and limits again, prints the shares, and judges them.
pub fn run(settings: &Settings, args: &RooflineArgs) -> anyhow::Result<()> {
    let mut boot = boot::prepare_to_serve(settings)?;
    check(&boot, args)?;
    // All of a crowd begin at once.
    boot.options.merge = MergeCap::Rows(usize::MAX);
    let (world, threads_per_rank) = (boot.options.world, boot.options.threads_per_rank);
    let (config, model) = (boot.config.clone(), boot.name.clone());
    let threads = world * threads_per_rank;
    boot.announce()?;

    let before = measure_limits(threads, args.limit_seconds)?;
    let samples = engine::with_engine(boot, async |engine: EngineHandle| {
        measure_engine(&engine, config.vocab_size, args).await
    })?;
    let after = measure_limits(threads, args.limit_seconds)?;

    let peak =
        if after.1.flops_per_second > before.1.flops_per_second { after.1 } else { before.1 };
    let machine = (before.0.max(after.0), peak.flops_per_second);
    let calls: Vec<Call> = samples
        .into_iter()
        .map(|samples| samples.beside(&config, world, machine))
        .collect::<anyhow::Result<_>>()?;
    let [alone, _, crowd, _] = &calls[..] else { bail!("there are four kinds of calls") };
    let outcome = Roofline {
        model,
        tensor_parallel_size: world,
        threads_per_rank,
        repeats: args.repeats,
        peak_instructions: peak.instructions.to_owned(),
        crowd_gain: alone.ms / (crowd.ms / crowd.rows as f64),
        calls,
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        let mut out = stdout();
        write!(out, "{outcome}")?;
        out.flush()?;
    }
    judge(&outcome, args)
}

fn check(boot: &Boot, args: &RooflineArgs) -> anyhow::Result<()> {
    let options = &boot.options;
    if args.prompt_tokens.max(DECODE_PROMPT) + args.decode_tokens > options.max_model_len {
        return Err(bad_input(format!(
            "--prompt-tokens {} and --decode-tokens {} do not fit the context of {} \
             (--max-model-len)",
            args.prompt_tokens, args.decode_tokens, options.max_model_len
        )));
    }
    for (what, rows) in [
        ("--prompt-tokens", args.prompt_tokens),
        ("--few-rows", args.few_rows),
        ("the prompts of --decode-requests", args.decode_requests * DECODE_PROMPT),
    ] {
        if rows > options.max_num_batched_tokens {
            return Err(bad_input(format!(
                "{what}: {rows} tokens do not fit one call; --max-num-batched-tokens is {}",
                options.max_num_batched_tokens
            )));
        }
    }
    if args.decode_requests > options.max_num_seqs {
        return Err(bad_input(format!(
            "--decode-requests {} needs as many slots; --max-num-seqs is {}",
            args.decode_requests, options.max_num_seqs
        )));
    }
    Ok(())
}

/// Read bandwidth in bytes a second, and the arithmetic peak.
pub(super) fn measure_limits(
    threads: usize,
    seconds: f64,
) -> anyhow::Result<(f64, limits::FlopPeak)> {
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

/// What calls of one kind took.
struct Samples {
    kind: Kind,
    rows: usize,
    ms: Vec<f64>,
}

impl Samples {
    /// Beside the machine's bytes and operations a second.
    fn beside(
        self,
        config: &ModelConfig,
        world: usize,
        (bandwidth, peak): (f64, f64),
    ) -> anyhow::Result<Call> {
        let Samples { kind, rows, ms: samples_ms } = self;
        let outputs = if kind == Kind::Prefill { 1 } else { rows };
        let work = Work::of(config, world, rows, outputs)?;
        let ms = samples_ms.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Call {
            kind,
            rows,
            work,
            ms,
            samples_ms,
            bandwidth: Mark::new(bandwidth, work.bytes as f64 / ms * 1e3),
            flops: Mark::new(peak, work.flops as f64 / ms * 1e3),
        })
    }
}

/// Milliseconds of the four kinds of calls, after one unmeasured round.
async fn measure_engine(
    engine: &EngineHandle,
    vocabulary: usize,
    args: &RooflineArgs,
) -> anyhow::Result<Vec<Samples>> {
    let kinds = [
        (Kind::Decode, 1),
        (Kind::Prefill, args.few_rows),
        (Kind::Decode, args.decode_requests),
        (Kind::Prefill, args.prompt_tokens),
    ];
    let mut all = kinds.map(|(kind, rows)| Samples { kind, rows, ms: Vec::new() });
    for round in 0..=args.repeats {
        for samples in &mut all {
            let (requests, length, tokens) = match samples.kind {
                Kind::Prefill => (1, samples.rows, 1),
                Kind::Decode => (samples.rows, DECODE_PROMPT, args.decode_tokens + 1),
            };
            let prompt = |index| prompts::spread(length, vocabulary, round * requests + index);
            let timings = ask(engine, (0..requests).map(prompt).collect(), tokens).await?;
            if round > 0 {
                samples.ms.push(match samples.kind {
                    Kind::Prefill => timings.prefill_ms,
                    Kind::Decode => timings.decode_ms / args.decode_tokens as f64,
                });
            }
        }
    }
    Ok(all.into())
}

/// Asks all at once; where the time of the last to end went.
async fn ask(
    engine: &EngineHandle,
    prompts: Vec<Vec<u32>>,
    tokens: usize,
) -> anyhow::Result<Timings> {
    let request = |(index, prompt): (usize, Vec<u32>)| GenerateRequest {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..GenerateRequest::greedy(format!("roofline-{index}"), prompt)
    };
    let requests = prompts.into_iter().enumerate().map(request).collect();
    let streams = engine.submit_all(requests).await?;
    let all = try_join_all(streams.into_iter().map(timings_of)).await?;
    let last = all.into_iter().max_by(|a, b| a.decode_ms.total_cmp(&b.decode_ms));
    last.ok_or_else(|| anyhow::anyhow!("nothing was asked"))
}

async fn timings_of(mut events: RequestStream) -> anyhow::Result<Timings> {
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt { .. } | Event::Token { .. } | Event::Ended { .. } => {}
            Event::Finished { timings, .. } => return Ok(timings),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the engine ended in the middle of a measurement")
}

/// Fails when a limit is wrong, or a share is below what was asked for.
fn judge(outcome: &Roofline, args: &RooflineArgs) -> anyhow::Result<()> {
    for call in &outcome.calls {
        let share = call.bandwidth.share.max(call.flops.share);
        if share > BEYOND {
            bail!(
                "a call of {} rows reached {:.1} % of a limit: it was measured wrong, the run is void",
                call.rows,
                share * 100.0
            );
        }
    }
    let [alone, _, crowd, long] = &outcome.calls[..] else {
        bail!("there are four kinds of calls")
    };
    for (what, share, floor) in [
        ("decode alone", alone.bandwidth.share, args.min_decode_share),
        ("decode in a crowd", crowd.flops.share, args.min_crowd_share),
        ("prefill", long.flops.share, args.min_prefill_share),
    ] {
        if let Some(floor) = floor
            && share < floor
        {
            bail!(
                "{what} reached {:.1} % of its limit, below the {:.1} % asked for",
                share * 100.0,
                floor * 100.0
            );
        }
    }
    Ok(())
}
