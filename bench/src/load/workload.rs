//! Requests to be sent: random, from conversations, or from a file.

mod files;
mod random;
mod words;

use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

pub use files::{CustomSet, ShareGptSet};
pub use random::{Lengths, RandomSet};
pub(super) use words::WORDS;

use super::{Backend, LoadError, Planned, Prompt, Tokens};

/// Where requests come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Random tokens, exact in number.
    Random(RandomSet),
    /// First questions of conversations, with the length of their first answers.
    ShareGpt(ShareGptSet),
    /// Prompts of a file, one JSON object a line.
    Custom(CustomSet),
}

impl Workload {
    /// Its name as an option.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Random(_) => "random",
            Workload::ShareGpt(_) => "sharegpt",
            Workload::Custom(_) => "custom",
        }
    }

    /// What tells it from others of its name, under the names of the options.
    pub fn options(&self) -> Map<String, Value> {
        let options = match self {
            Workload::Random(set) => json!({
                "random_input_len": set.input.middle(),
                "random_output_len": set.output.middle(),
                "random_range_ratio": set.input.ratio(),
                "random_prefix_len": set.prefix,
            }),
            Workload::ShareGpt(set) => json!({
                "dataset_path": set.path,
                "sharegpt_output_len": set.output_tokens,
            }),
            Workload::Custom(set) => json!({
                "dataset_path": set.path,
                "custom_output_len": set.output_tokens,
            }),
        };
        match options {
            Value::Object(options) => options,
            _ => Map::new(),
        }
    }

    /// Tokens at the beginning that all prompts have in common, which a prefix cache may well have.
    pub fn shared_prefix(&self) -> usize {
        match self {
            Workload::Random(set) => set.prefix,
            Workload::ShareGpt(_) | Workload::Custom(_) => 0,
        }
    }

    /// Makes `count` requests. The same generator gives the same requests.
    ///
    /// # Errors
    ///
    /// Lengths that cannot be, a file that cannot be used, a tokenizer that fails.
    pub async fn make(
        &self,
        count: usize,
        backend: Backend,
        tokens: Option<&Tokens>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        match self {
            Workload::Random(set) => set.make(count, backend, tokens, rng).await,
            Workload::ShareGpt(set) => set.make(count, tokens, rng).await,
            Workload::Custom(set) => set.make(count, tokens, rng).await,
        }
    }
}

/// Tokens of a prompt that is a text; none without a tokenizer.
async fn counted(text: &str, tokens: Option<&Tokens>) -> Result<Option<usize>, LoadError> {
    match tokens {
        Some(tokens) => Ok(Some(tokens.encode(text).await?.len())),
        None => Ok(None),
    }
}

fn planned(text: String, prompt_tokens: Option<usize>, output_tokens: usize) -> Planned {
    Planned { prompt: Prompt::Text(text), prompt_tokens, output_tokens }
}
