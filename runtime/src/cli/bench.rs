//! Options of `bench`.

mod ab;
mod ladder;
mod limit;
mod prefill;
mod serve;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pocket_config::Sources;

use super::settings::{BenchScope, CtlScope, SettingArgs};
use super::values;

pub use ab::AbArgs;
pub use ladder::LadderArgs;
pub use limit::LimitArgs;
pub use prefill::PrefillArgs;
pub use serve::{BackendName, DatasetName, ResultArgs, ServeBenchArgs, TargetArgs, WorkloadArgs};

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Calls of one, few and many rows against the machine's bandwidth and arithmetic peak
    Roofline(RooflineArgs),
    /// A wave of requests merged into one call, cut by the scheduler, and one call each
    Wave(WaveArgs),
    /// A load on a server of OpenAI's API, measured as `vllm bench serve` does
    Serve(Box<ServeBenchArgs>),
    /// Ratios of everything that two records of the same kind have in common
    Compare(CompareArgs),
    /// The same load at rising widths: throughput, times, and where more width stops paying
    Ladder(Box<LadderArgs>),
    /// The largest slots and context that start, and what the server above them says
    Limit(LimitArgs),
    /// What a prefill call costs: calls and tokens taken apart, checked by a wave and by a control
    Prefill(PrefillArgs),
    /// Two servers that differ in flags or settings, measured in turn
    Ab(AbArgs),
}

impl Bench {
    /// Where this command's settings come from.
    pub fn sources(&self) -> Sources {
        match self {
            Bench::Roofline(args) => args.settings.sources(),
            Bench::Wave(args) => args.settings.sources(),
            Bench::Ladder(args) => args.settings.sources(),
            Bench::Limit(args) => args.settings.sources(),
            // The server has settings, its client has none but those of logging.
            Bench::Serve(_) => Sources::of_process(None, Vec::new()),
            Bench::Compare(args) => args.settings.sources(),
            Bench::Prefill(args) => args.settings.sources(),
            Bench::Ab(args) => args.settings.sources(),
        }
    }
}

/// What becomes of a measurement of own servers.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Directory for the record and the report
    #[arg(long, value_name = "DIR")]
    pub result_dir: Option<PathBuf>,
    /// Print the record as one JSON object instead of the report
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench roofline`.
#[derive(Debug, Args)]
pub struct RooflineArgs {
    /// Tokens of the measured prefill
    #[arg(long, value_name = "N", default_value = "512", value_parser = values::positive)]
    pub prompt_tokens: usize,
    /// Tokens of the measured decode
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::positive)]
    pub decode_tokens: usize,
    /// Requests that decode together in the measured crowd
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub decode_requests: usize,
    /// Tokens of the measured short prefill
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::positive)]
    pub few_rows: usize,
    /// Measured rounds, after one that is not
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::positive)]
    pub repeats: usize,
    /// Seconds each limit is measured, before the engine and again after it
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = values::seconds)]
    pub limit_seconds: f64,
    /// Fail (exit code 1) below this share of the read bandwidth
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    pub min_decode_share: Option<f64>,
    /// Fail (exit code 1) when the crowd's decode is below this share of the arithmetic peak
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    pub min_crowd_share: Option<f64>,
    /// Fail (exit code 1) below this share of the arithmetic peak
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    pub min_prefill_share: Option<f64>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}

/// Options of `bench wave`.
#[derive(Debug, Args)]
pub struct WaveArgs {
    /// Prompts offered at once
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub requests: usize,
    /// Tokens of each prompt; several lengths are measured one after the other
    #[arg(long, value_name = "N,...", default_value = "8,32,128", value_parser = values::counts)]
    pub prompt_tokens: values::Counts,
    /// Measured rounds, after one that is not
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::positive)]
    pub rounds: usize,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}

/// Options of `bench compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The record to compare with
    #[arg(value_name = "A.json")]
    pub a: PathBuf,
    /// The record whose numbers stand above
    #[arg(value_name = "B.json")]
    pub b: PathBuf,
    /// Compare records that are INVALID too, with a warning
    #[arg(long)]
    pub allow_invalid: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<CtlScope>,
}
