//! `generation_config.json`: the sampling a checkpoint's makers recommend.

use serde::Serialize;

use crate::ModelError;
use crate::config::{Keys, ModelConfig, token_ids};

/// Sampling defaults of a checkpoint. A field is absent when the file (or the key) is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// Ids that end a generation: those of this file first, then those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample; false asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Temperature, 0 for greedy.
    pub temperature: Option<f32>,
    /// Nucleus: the smallest set of tokens with this much probability.
    pub top_p: Option<f32>,
    /// The most likely tokens to choose among; absent or 0 for all.
    pub top_k: Option<u32>,
    /// Tokens below this share of the top probability are out.
    pub min_p: Option<f32>,
    /// Factor by which tokens seen before are made less likely.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads the text of a `generation_config.json` and adds the end ids of the model's own file.
    /// `file` names it in errors.
    pub fn parse(
        file: &str,
        text: &[u8],
        model: &ModelConfig,
    ) -> Result<GenerationConfig, ModelError> {
        let keys = Keys::parse(file, text)?;
        let mut eos = token_ids(&keys, "eos_token_id", Some(model.vocab_size))?.unwrap_or_default();
        let number = |key, most| {
            keys.optional_number(key, 0.0, most).map(|value| value.map(|value| value as f32))
        };
        let mut config = GenerationConfig {
            eos_token_ids: Vec::new(),
            do_sample: keys.bool("do_sample")?,
            temperature: number("temperature", 1e6)?,
            top_p: number("top_p", 1.0)?,
            top_k: keys.optional_count("top_k", 0, u32::MAX as usize)?.map(|k| k as u32),
            min_p: number("min_p", 1.0)?,
            repetition_penalty: number("repetition_penalty", 1e6)?,
        };
        eos.extend(&model.eos_token_ids);
        for id in eos {
            if !config.eos_token_ids.contains(&id) {
                config.eos_token_ids.push(id);
            }
        }
        Ok(config)
    }

    /// What holds for a checkpoint without the file.
    pub fn without_file(model: &ModelConfig) -> GenerationConfig {
        GenerationConfig { eos_token_ids: model.eos_token_ids.clone(), ..Default::default() }
    }
}
