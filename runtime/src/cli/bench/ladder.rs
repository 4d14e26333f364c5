//! Options of `bench ladder`.

use clap::Args;
use pocket_bench::load::Slo;

use super::KeepArgs;
use crate::cli::settings::{BenchScope, SettingArgs};
use crate::cli::values;

/// Options of `bench ladder`.
#[derive(Debug, Args)]
pub struct LadderArgs {
    /// Widest wave; widths are the powers of two up to it, and it
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::positive)]
    pub slots: usize,
    /// Widths, instead of those
    #[arg(long, value_name = "N,...", value_parser = values::counts, conflicts_with = "slots")]
    pub widths: Option<values::Counts>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::positive)]
    pub input_len: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::positive)]
    pub output_len: usize,
    /// Requests of a refilled load, as a multiple of its width
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::positive)]
    pub refills: usize,
    /// How often every width is measured, up and down in turn
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::positive)]
    pub repeats: usize,
    /// What an answer must keep to be good, milliseconds: ttft, tpot, e2el
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = values::objective)]
    pub goodput: Vec<values::Objective>,
    /// What prompts are drawn from [default: another number in each run]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Measure this server instead of one of its own
    #[arg(long, value_name = "URL", value_parser = values::base_url)]
    pub base_url: Option<String>,
    /// Model's name in requests to such a server [default: the first that it lists]
    #[arg(long, value_name = "NAME", requires = "base_url")]
    pub served_model: Option<String>,
    /// What becomes of the result.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Show no progress bar
    #[arg(long)]
    pub disable_tqdm: bool,
    /// Settings of its own server.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}

impl LadderArgs {
    /// The widths, rising.
    pub fn widths(&self) -> Vec<usize> {
        let mut widths = match &self.widths {
            Some(values::Counts(widths)) => widths.clone(),
            None => {
                let powers = (0..).map(|power| 1 << power).take_while(|width| *width < self.slots);
                powers.chain([self.slots]).collect()
            }
        };
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// What answers must keep.
    pub fn slo(&self) -> Option<Slo> {
        values::slo(&self.goodput)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LadderArgs,
    }

    fn widths(line: &[&str]) -> Vec<usize> {
        Line::parse_from([&["ladder"], line].concat()).args.widths()
    }

    #[test]
    fn widths_double_up_to_the_widest() {
        assert_eq!(widths(&["--slots=8"]), [1, 2, 4, 8]);
        assert_eq!(widths(&["--slots=6"]), [1, 2, 4, 6]);
        assert_eq!(widths(&["--slots=1"]), [1]);
        assert_eq!(widths(&["--widths=5,3,5"]), [3, 5]);
    }
}
