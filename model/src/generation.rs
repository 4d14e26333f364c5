//! `generation_config.json`: the sampling a checkpoint's makers recommend.

use serde::Serialize;

use crate::ModelError;
use crate::config::{Keys, ModelConfig, token_ids};
use crate::sampler::{MAX_REPETITION_PENALTY, MAX_TEMPERATURE};

/// Sampling defaults of a checkpoint. A field is absent when the file (or the key) is. Values are in the
/// ranges of [`SamplingParams`](crate::sampler::SamplingParams), but that `top_p` may be 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// Ids that end a generation: those of this file first, then those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample; false asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Temperature, 0 for greedy.
    pub temperature: Option<f32>,
    /// Nucleus: the smallest set of tokens with this much probability; 0 for all.
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
        let number = |key, most: f32| {
            let value = keys.optional_number(key, 0.0, most.into())?;
            Ok::<_, ModelError>(value.map(|value| value as f32))
        };
        let mut config = GenerationConfig {
            eos_token_ids: Vec::new(),
            do_sample: keys.bool("do_sample")?,
            temperature: number("temperature", MAX_TEMPERATURE)?,
            top_p: number("top_p", 1.0)?,
            top_k: keys.optional_count("top_k", 0, u32::MAX as usize)?.map(|k| k as u32),
            min_p: number("min_p", 1.0)?,
            repetition_penalty: repetition_penalty(&keys)?,
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

fn repetition_penalty(keys: &Keys) -> Result<Option<f32>, ModelError> {
    const KEY: &str = "repetition_penalty";
    let Some(value) = keys.value(KEY) else { return Ok(None) };
    match value.as_f64().map(|factor| factor as f32) {
        Some(factor) if factor > 0.0 && factor <= MAX_REPETITION_PENALTY => Ok(Some(factor)),
        _ => Err(keys.wrong(KEY, value, "a number above 0, at most 10")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GenerationConfig, String> {
        let model = ModelConfig { eos_token_ids: vec![7, 9], ..crate::config::small() };
        GenerationConfig::parse("generation_config.json", text.as_bytes(), &model)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn end_ids_of_both_files_count_this_ones_first() {
        assert_eq!(parse("{}").unwrap().eos_token_ids, [7, 9]);
        assert_eq!(parse(r#"{"eos_token_id": 9}"#).unwrap().eos_token_ids, [9, 7]);
        assert_eq!(parse(r#"{"eos_token_id": [3, 7]}"#).unwrap().eos_token_ids, [3, 7, 9]);
    }

    #[test]
    fn sampling_defaults() {
        let found = parse(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
                "repetition_penalty": 1.05, "transformers_version": "5.24.0"}"#,
        );
        let expected = GenerationConfig {
            eos_token_ids: vec![7, 9],
            do_sample: Some(true),
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
        };
        assert_eq!(found.unwrap(), expected);
        let absent = parse(r#"{"temperature": null}"#).unwrap();
        assert_eq!((absent.temperature, absent.do_sample), (None, None));
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, expected) in [
            (r#"{"temperature": -1}"#, "temperature is -1: expected a number from 0 to 100"),
            (r#"{"min_p": 2}"#, "min_p is 2: expected a number from 0 to 1"),
            (
                r#"{"repetition_penalty": 0}"#,
                "repetition_penalty is 0: expected a number above 0, at most 10",
            ),
            (
                r#"{"repetition_penalty": 10.5}"#,
                "repetition_penalty is 10.5: expected a number above 0, at most 10",
            ),
            (r#"{"top_p": 1.5}"#, "top_p is 1.5: expected a number from 0 to 1"),
            (r#"{"top_k": -5}"#, "top_k is -5: expected a whole number from 0 to"),
            (r#"{"do_sample": "no"}"#, "do_sample is \"no\": expected true or false"),
            (r#"{"eos_token_id": 248320}"#, "eos_token_id is 248320: expected a token id below"),
        ] {
            let message = parse(text).unwrap_err();
            let named = format!("generation_config.json: {expected}");
            assert!(message.starts_with(&named), "{message}");
        }
    }
}
