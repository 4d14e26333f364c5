//! Options of `bench serve`, under the names of `vllm bench serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::values;

/// Options of `bench serve`.
#[derive(Debug, Args)]
pub struct ServeBenchArgs {
    /// Whom to ask, and how.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What to ask.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// When to ask.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// What to show and keep.
    #[command(flatten)]
    pub result: ResultArgs,
}

/// Whom to ask, and how.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Server to be measured
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000", value_parser = values::base_url)]
    pub base_url: String,
    /// How requests are written
    #[arg(long, value_enum, default_value_t = BackendName::Openai)]
    pub backend: BackendName,
    /// Route that is asked [default: /v1/completions, or /v1/chat/completions with openai-chat]
    #[arg(long, value_name = "PATH", value_parser = values::endpoint)]
    pub endpoint: Option<String>,
    /// Model's name in requests [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Key sent as a bearer token
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Header of every request; may be given several times
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., value_parser = values::pair)]
    pub header: Vec<(String, String)>,
    /// Members of every request's body, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = values::json_object)]
    pub extra_body: Option<values::JsonObject>,
    /// Ask for answers of full length, past end-of-sequence tokens; always with the random data set
    #[arg(long)]
    pub ignore_eos: bool,
    /// Seconds a request may take until it counts as failed [default: 6 hours]
    #[arg(long, value_name = "SECONDS", value_parser = values::above_zero)]
    pub request_timeout: Option<f64>,
}

/// Routes, by the names that vLLM gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Continues texts or token ids by /v1/completions.
    #[value(alias = "vllm")]
    Openai,
    /// Asks as a user by /v1/chat/completions.
    OpenaiChat,
}

/// Where prompts come from, by the names that vLLM gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// Random tokens of exact number.
    Random,
    /// Conversations in ShareGPT's form.
    Sharegpt,
    /// JSON lines with a prompt each.
    Custom,
}

/// What to ask.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Where prompts come from
    #[arg(long, value_enum, default_value_t = DatasetName::Random)]
    pub dataset_name: DatasetName,
    /// File of the sharegpt or the custom data set
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Directory with a tokenizer.json, or that file [default: the server's /tokenize]
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Use no tokenizer: random prompts have as many words as they should have tokens
    #[arg(long, conflicts_with = "tokenizer")]
    pub skip_tokenizer_init: bool,
    /// Requests that are measured
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::positive)]
    pub num_prompts: usize,
    /// Tokens of a random prompt
    #[arg(long, value_name = "N", default_value = "1024", value_parser = values::positive)]
    pub random_input_len: usize,
    /// Tokens of the answer to a random prompt
    #[arg(long, value_name = "N", default_value = "128", value_parser = values::positive)]
    pub random_output_len: usize,
    /// How far single lengths may be from those, as a share of them: from 0 to below 1
    #[arg(long, value_name = "SHARE", default_value = "0", allow_negative_numbers = true)]
    pub random_range_ratio: f64,
    /// Tokens before a random prompt that are the same in all
    #[arg(long, value_name = "N", default_value = "0")]
    pub random_prefix_len: usize,
    /// Tokens of each answer to a conversation [default: those of the conversation's own answer]
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub sharegpt_output_len: Option<usize>,
    /// Tokens of each answer to a prompt of a file [default: the line's output_tokens]
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub custom_output_len: Option<usize>,
    /// What random prompts and times are drawn from [default: another number in each run]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// When to ask.
#[derive(Debug, Args)]
pub struct TrafficArgs {
    /// Requests a second; inf sends all at once
    #[arg(long, value_name = "RATE", default_value = "inf", allow_negative_numbers = true)]
    pub request_rate: f64,
    /// Shape of the times between requests: 1 is a Poisson process, less is burstier, inf is even
    #[arg(long, value_name = "SHAPE", default_value = "1", allow_negative_numbers = true)]
    pub burstiness: f64,
    /// Most requests open at a time; the others wait for their turn [default: no limit]
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub max_concurrency: Option<usize>,
    /// Requests before those that are measured, with prompts of their own
    #[arg(long, value_name = "N", default_value = "0")]
    pub num_warmups: usize,
}

/// What to show and keep.
#[derive(Debug, Args)]
pub struct ResultArgs {
    /// What an answer must keep to be good, milliseconds: ttft, tpot, e2el
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = values::objective)]
    pub goodput: Vec<values::Objective>,
    /// Metrics in the result
    #[arg(long, value_name = "METRIC,...", default_value = "ttft,tpot,itl,e2el", value_parser = values::metrics)]
    pub percentile_metrics: values::Metrics,
    /// Percentiles of each
    #[arg(long, value_name = "P,...", default_value = "99", value_parser = values::percents)]
    pub metric_percentiles: values::Percents,
    /// Save the result as a JSON file
    #[arg(long)]
    pub save_result: bool,
    /// Directory of the result; a record and a report are written there too [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub result_dir: Option<PathBuf>,
    /// Name of the result's file [default: label or backend, rate, model and date]
    #[arg(long, value_name = "FILE", requires = "save_result")]
    pub result_filename: Option<PathBuf>,
    /// Keep every request in the result: lengths, times, texts, errors
    #[arg(long)]
    pub save_detailed: bool,
    /// Write the result to this file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json_out: Option<PathBuf>,
    /// Print the result as one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Name of the result; its file begins with it [default: none, and the backend in the file's name]
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Member that is added to the result; may be given several times
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., value_parser = values::pair)]
    pub metadata: Vec<(String, String)>,
    /// Show no progress bar
    #[arg(long)]
    pub disable_tqdm: bool,
}
