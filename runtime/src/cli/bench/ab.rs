//! Options of `bench ab`.

use clap::Args;

use super::KeepArgs;
use crate::cli::settings::{BenchScope, SettingArgs};
use crate::cli::values;

/// Options of `bench ab`.
#[derive(Debug, Args)]
pub struct AbArgs {
    /// What A's server is started with: a flag, such as POCKET_PREFILL_MERGE=0, or a setting, such as
    /// max_num_batched_tokens=64; may be given several times
    #[arg(long, value_name = "K=V", required = true, value_parser = values::pair)]
    pub a: Vec<(String, String)>,
    /// What B's server is started with
    #[arg(long, value_name = "K=V", required = true, value_parser = values::pair)]
    pub b: Vec<(String, String)>,
    /// A series of /metrics that must rise in an arm while it is measured, such as
    /// b:pocket_preemptions_total; the record is INVALID if it does not
    #[arg(long, value_name = "ARM:SERIES", value_parser = values::of_arm)]
    pub must_rise: Vec<values::OfArm>,
    /// A series of /metrics that must not change in an arm
    #[arg(long, value_name = "ARM:SERIES", value_parser = values::of_arm)]
    pub must_stay: Vec<values::OfArm>,
    /// Prompts offered at once
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub requests: usize,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::positive)]
    pub prompt_tokens: usize,
    /// Tokens generated for each
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub output_tokens: usize,
    /// Pairs of waves, after one that is not measured
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::positive)]
    pub pairs: usize,
    /// What prompts are drawn from [default: another number in each run]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// What becomes of the result.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Settings of both servers.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}
