//! Options of `fit`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::settings::{CtlScope, SettingArgs};
use super::values;

/// Options of `fit`.
#[derive(Debug, Args)]
#[command(
    after_help = "Points are tokens, calls (1 where not told) and a time to first token in ms, in a CSV file with \
                  a heading, or in JSON as an array of objects, or as objects of columns and rows anywhere in \
                  it. Of a record of bench prefill or of fit they are those that it was fitted to."
)]
pub struct FitArgs {
    /// Points to fit
    #[arg(
        value_name = "FILE",
        required_unless_present_any = ["per_call_ms", "moved_ms"],
        conflicts_with = "per_call_ms"
    )]
    pub file: Option<PathBuf>,
    /// Take only the points of this table of a JSON file; may be given several times
    #[arg(long, value_name = "NAME", requires = "file")]
    pub table: Vec<String>,
    /// Take times to first token from this column [default: ttft_ms, or a mean, or a median]
    #[arg(long, value_name = "NAME", requires = "file")]
    pub ttft_column: Option<String>,
    /// Which errors are made small; predictions follow this fit, and the other stands beside it
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Weights::Relative)]
    pub weights: Weights,
    /// Instead of a fit: milliseconds of a call
    #[arg(long, value_name = "MS", value_parser = values::amount, requires = "per_token_us")]
    pub per_call_ms: Option<f64>,
    /// Instead of a fit: microseconds of a token
    #[arg(long, value_name = "US", value_parser = values::amount, requires = "per_call_ms")]
    pub per_token_us: Option<f64>,
    /// Instead of a fit: milliseconds of a request whatever its calls and tokens [default: 0]
    #[arg(long, value_name = "MS", value_parser = values::amount, requires = "per_call_ms")]
    pub constant_ms: Option<f64>,
    /// Prompts of a wave to merge, or of a wave check
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub wave_prompts: usize,
    /// Predict what merging a wave with so many tokens in all gains
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub wave_tokens: Option<usize>,
    /// Most tokens of a merged call [default: no limit]
    #[arg(long, value_name = "N", value_parser = values::positive, requires = "wave_tokens")]
    pub tokens_a_call: Option<usize>,
    /// Read a wave check: how far the mean TTFT moved when every prompt got more calls, and the first request
    /// waited for its own calls, all others for the wave's
    #[arg(long, value_enum, value_name = "READING")]
    pub wave: Option<WaveReading>,
    /// Calls that each prompt of the wave check got more
    #[arg(long, value_name = "N", default_value = "2", value_parser = values::positive)]
    pub more_calls: usize,
    /// Milliseconds by which the wave check's mean TTFT moved [default: FILE's mean_ttft_moved_ms]
    #[arg(long, value_name = "MS", value_parser = values::amount, requires = "wave")]
    pub moved_ms: Option<f64>,
    /// Tell what share of the time to first token is not the tokens', for prompts of these lengths
    #[arg(long, value_name = "N,...", value_parser = values::counts)]
    pub lengths: Option<values::Counts>,
    /// Tell arithmetic rates for a model of so many floating-point operations a token, such as 51.244e9
    #[arg(long, value_name = "FLOP", value_parser = values::above_zero)]
    pub flop_per_token: Option<f64>,
    /// Fit the points of a record that is INVALID too
    #[arg(long, requires = "file")]
    pub allow_invalid: bool,
    /// Write record.json, report.html and report.md into this directory
    #[arg(long, value_name = "DIR")]
    pub result_dir: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<CtlScope>,
}

/// Which errors a fit makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Weights {
    /// Errors relative to the time: 10 ms count more at 100 ms than at 10 s
    Relative,
    /// Errors in milliseconds, all alike
    Ordinary,
}

/// How a wave check is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaveReading {
    /// The first request waits for its own calls, all others for the whole wave
    Bimodal,
}
