//! The command line.
//!
//! Commands and their own options are declared here; everything that is a setting comes from the table
//! in `pocket-config` (see [`settings`]), so the two cannot disagree.

mod bench;
mod ctl;
mod fit;
mod settings;
mod usage;
pub mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use pocket_config::Sources;

pub use bench::{
    AbArgs, BackendName, Bench, BenchArgs, CompareArgs, DatasetName, KeepArgs, LadderArgs,
    LimitArgs, PrefillArgs, ResultArgs, RooflineArgs, ServeBenchArgs, TargetArgs, WaveArgs,
    WorkloadArgs,
};
pub use ctl::{Ctl, CtlArgs, CtlTarget, ProfileArgs, ProfileStep, StatusArgs};
pub use fit::{FitArgs, WaveReading, Weights};
pub use settings::{FlagsScope, InspectScope, OneShotScope, ServeScope, SettingArgs};
pub use usage::report;
pub use values::{OfArm, TokenIds};

/// Serves a Qwen3.5-family model split by tensor parallelism over rank processes.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer requests over HTTP, in the form of the OpenAI API
    Serve(ServeArgs),
    /// Answer one prompt and print it as it comes
    Generate(GenerateArgs),
    /// Print the log-probability of each token of a text, and its perplexity
    Score(ScoreArgs),
    /// Describe a checkpoint: architecture, parameters, bytes a rank and a token, tensors
    Inspect(InspectArgs),
    /// Ask or steer a running daemon
    Ctl(CtlArgs),
    /// List the experiment flags with their values
    Flags(FlagsArgs),
    /// Measure this machine and this engine
    Bench(BenchArgs),
    /// What a call and a token cost, from a file of measured points
    Fit(FitArgs),
    /// Run one rank; started by the coordinator, not by hand
    #[command(hide = true)]
    Rank,
}

impl Command {
    /// Where this command's settings come from.
    pub fn sources(&self) -> Sources {
        match self {
            Command::Serve(args) => args.settings.sources(),
            Command::Generate(args) => args.settings.sources(),
            Command::Score(args) => args.settings.sources(),
            Command::Inspect(args) => args.settings.sources(),
            Command::Ctl(args) => args.settings.sources(),
            Command::Flags(args) => args.settings.sources(),
            Command::Bench(args) => args.what.sources(),
            Command::Fit(args) => args.settings.sources(),
            Command::Rank => Sources::of_process(None, Vec::new()),
        }
    }
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Print the memory plan and end: exit code 0 if the model fits, 1 if not
    #[arg(long)]
    pub dry_run: bool,
    /// Print the memory plan as one JSON object
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Stop with the process of this id, which started this one: a benchmark and its servers
    #[arg(long, hide = true, value_name = "PID")]
    pub tied_to_parent: Option<i32>,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<ServeScope>,
}

/// Options of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What to answer.
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Continue the text as it is instead of answering it as a user's message
    #[arg(long, conflicts_with = "ids")]
    pub raw: bool,
    /// Most tokens to generate [default: 256, or as many as fit]
    #[arg(long, value_name = "N", value_parser = values::positive, allow_hyphen_values = true)]
    pub max_tokens: Option<usize>,
    /// Divides the logits; 0 always takes the likeliest token [default: the checkpoint's]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Choose among the likeliest tokens that hold this probability together [default: the
    /// checkpoint's]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 is all [default: the checkpoint's]
    #[arg(long, value_name = "K", allow_hyphen_values = true)]
    pub top_k: Option<usize>,
    /// Choose among tokens with at least this share of the likeliest one's probability [default: the
    /// checkpoint's]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// Divide the likelihood of tokens of prompt and answer by this; 1 is off [default: the
    /// checkpoint's]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,
    /// Take this off the logits of tokens the answer has, -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Take this off the logits of the answer's tokens for each time they are in it, -2 to 2 [default:
    /// 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// Make the choices repeatable
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub seed: Option<u64>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = values::stop)]
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<OneShotScope>,
}

/// Options of `score`.
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// What to score.
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Tokens a forward call, a multiple of 64 [default: --max-num-batched-tokens]
    #[arg(long, value_name = "TOKENS", value_parser = values::chunk, allow_hyphen_values = true)]
    pub chunk: Option<usize>,
    /// Also write the last token's logits to this safetensors file, as `logits`
    #[arg(long, value_name = "FILE")]
    pub logits: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<OneShotScope>,
}

/// A text or its tokens.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct PromptArgs {
    /// The text
    pub text: Option<String>,
    /// Token ids instead of a text, separated by commas
    #[arg(long, value_name = "IDS", value_parser = values::token_ids, allow_hyphen_values = true)]
    pub ids: Option<TokenIds>,
}

/// Options of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Checkpoint directory; the same as --model
    #[arg(value_name = "DIR", conflicts_with = "model")]
    pub directory: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<InspectScope>,
}

/// Options of `flags`.
#[derive(Debug, Args)]
pub struct FlagsArgs {
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<FlagsScope>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use pocket_config::SETTINGS;

    use super::*;

    fn parse(line: &[&str]) -> Result<Command, String> {
        let line = ["pocketd"].iter().chain(line);
        Cli::try_parse_from(line).map(|cli| cli.command).map_err(|error| usage::summary(&error))
    }

    fn generate(line: &[&str]) -> GenerateArgs {
        match parse(&[&["generate"], line].concat()) {
            Ok(Command::Generate(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(line: &[&str]) -> String {
        parse(line).unwrap_err()
    }

    #[test]
    fn the_declarations_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_prompt_is_a_text_or_ids_and_one_of_them() {
        assert_eq!(generate(&["hello"]).prompt.text.as_deref(), Some("hello"));
        assert_eq!(generate(&["--ids", "1,2,3"]).prompt.ids.unwrap().0, [1, 2, 3]);
        assert_eq!(generate(&["--ids= 1, 2"]).prompt.ids.unwrap().0, [1, 2]);
        assert!(refusal(&["generate"]).contains("required arguments were not provided"));
        assert!(refusal(&["generate", "x", "--ids", "1"]).contains("cannot be used with"));
        assert!(refusal(&["generate", "--raw", "--ids", "1"]).contains("cannot be used with"));
    }

    #[test]
    fn ids_are_refused_by_the_piece() {
        for (ids, part) in [("1,x,3", "'x'"), ("-5", "'-5'"), ("1,,2", "''"), ("", "no ids")] {
            let error = refusal(&["score", "--ids", ids]);
            assert!(error.contains(part) && error.contains("--ids"), "{ids:?}: {error}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_in_one_line() {
        for line in [
            ["generate", "x", "--max-tokens=0"],
            ["generate", "x", "--max-tokens=-1"],
            ["generate", "x", "--max-tokens=many"],
            ["generate", "x", "--stop="],
            ["generate", "x", "--seed=1.5"],
            ["generate", "x", "--top-k=-3"],
            ["generate", "x", "--min-p=little"],
            ["generate", "x", "--repetition-penalty=no"],
            ["score", "x", "--chunk=0"],
            ["score", "x", "--chunk=63"],
        ] {
            let error = refusal(&line);
            assert!(error.starts_with("invalid value"), "{error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn penalties_may_be_negative() {
        let args = generate(&["x", "--presence-penalty", "-0.5", "--frequency-penalty=-2"]);
        assert_eq!((args.presence_penalty, args.frequency_penalty), (Some(-0.5), Some(-2.0)));
        let args = generate(&["x", "--min-p", "0.1", "--repetition-penalty", "1.2"]);
        assert_eq!((args.min_p, args.repetition_penalty), (Some(0.1), Some(1.2)));
    }

    #[test]
    fn a_misspelt_option_is_answered_with_the_right_one() {
        let error = refusal(&["generate", "x", "--max-modle-len", "5"]);
        assert!(error.contains("'--max-modle-len'"), "{error}");
        assert!(error.contains("'--max-model-len'"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn settings_reach_the_sources_under_their_keys() {
        let args = generate(&[
            "x",
            "--max-context",
            "99",
            "--tensor-parallel-size=2",
            "--allow-faults",
            "--config",
            "a.toml",
        ]);
        let sources = args.settings.sources();
        assert_eq!(sources.config, Some(PathBuf::from("a.toml")));
        let given: Vec<(&str, &str)> =
            sources.command_line.iter().map(|(key, value)| (*key, value.as_str())).collect();
        assert_eq!(
            given,
            [("tensor_parallel_size", "2"), ("max_model_len", "99"), ("allow_faults", "true")]
        );
        let off = generate(&["x", "--allow-faults=false"]).settings.sources();
        assert_eq!(off.command_line, [("allow_faults", "false".to_owned())]);
    }

    #[test]
    fn one_shot_commands_do_not_listen() {
        assert!(refusal(&["generate", "x", "--port", "1"]).contains("'--port'"));
        assert!(refusal(&["inspect", "--max-queue", "1"]).contains("'--max-queue'"));
    }

    #[test]
    fn every_setting_is_an_option_of_some_command() {
        let cli = Cli::command();
        for setting in SETTINGS {
            let option = setting.option();
            let known = cli.get_subcommands().any(|command| {
                command.get_arguments().any(|arg| arg.get_long() == Some(option.as_str()))
            });
            assert!(known, "--{option}");
        }
    }

    #[test]
    fn inspect_takes_a_directory_once() {
        let line = ["inspect", "some/where", "--tensor-parallel-size", "2"];
        assert!(matches!(parse(&line), Ok(Command::Inspect(_))));
        assert!(refusal(&["inspect", "a", "--model", "b"]).contains("cannot be used with"));
    }
}
