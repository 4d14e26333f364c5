//! Options of `bench prefill`.

use clap::Args;

use super::KeepArgs;
use crate::cli::settings::{BenchScope, SettingArgs};
use crate::cli::values;

/// Options of `bench prefill`.
#[derive(Debug, Args)]
pub struct PrefillArgs {
    /// Tokens of the prompts of one call, at least nine lengths, the longest at least 512 [default: 32 to
    /// 1024; 16 to 512 with --quick]
    #[arg(long, value_name = "N,...", value_parser = values::counts)]
    pub lengths: Option<values::Counts>,
    /// Prompts of the waves
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::positive)]
    pub wave: usize,
    /// How often everything is measured [default: 5; 3 with --quick]
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub repeats: Option<usize>,
    /// Shorter prompts and fewer repeats: to see whether all is well, not to publish
    #[arg(long)]
    pub quick: bool,
    /// Leave the negative control out, which has nothing to act on at one rank
    #[arg(long)]
    pub no_control: bool,
    /// What prompts are drawn from [default: another number in each run]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// What becomes of the result.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Settings of its servers.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}

/// Lengths unless others are asked for.
const LENGTHS: [usize; 10] = [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
/// The same for a quick look.
const QUICK_LENGTHS: [usize; 9] = [16, 32, 64, 96, 128, 192, 256, 384, 512];

impl PrefillArgs {
    /// The lengths that hold.
    pub fn lengths(&self) -> Vec<usize> {
        match &self.lengths {
            Some(values::Counts(lengths)) => lengths.clone(),
            None if self.quick => QUICK_LENGTHS.to_vec(),
            None => LENGTHS.to_vec(),
        }
    }

    /// The repeats that hold.
    pub fn repeats(&self) -> usize {
        self.repeats.unwrap_or(if self.quick { 3 } else { 5 })
    }
}
