//! The shape of a Qwen3.5 model: what goes into `config.json`.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes of a model, under the names `config.json` gives them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Numbers in a token's hidden vector.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Number of layers; every `full_attention_interval`-th has full attention.
    pub num_hidden_layers: usize,
    /// Query heads of full attention.
    pub num_attention_heads: usize,
    /// Key/value heads of full attention.
    pub num_key_value_heads: usize,
    /// Numbers in a head of full attention.
    pub head_dim: usize,
    /// Query/key heads of linear attention.
    pub linear_num_key_heads: usize,
    /// Value heads of linear attention.
    pub linear_num_value_heads: usize,
    /// Numbers in a query or key head of linear attention.
    pub linear_key_head_dim: usize,
    /// Numbers in a value head of linear attention.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub linear_conv_kernel_dim: usize,
    /// Layer `i` has full attention when this divides `i + 1`.
    #[serde(default = "four")]
    pub full_attention_interval: usize,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Positions the model takes.
    pub max_position_embeddings: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f64,
    /// Rotary embedding, as it stands in the file.
    pub rope_parameters: Value,
}

fn four() -> usize {
    4
}

fn rope(head_dim: usize) -> Value {
    // A quarter of each head rotates; the three axes of mrope share its pairs.
    let pairs = head_dim / 8;
    let other = pairs * 11 / 32;
    json!({
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [pairs - 2 * other, other, other],
        "mrope_interleaved": true,
    })
}

impl Shape {
    /// Qwen3.5-0.8B.
    pub fn qwen_0_8b() -> Self {
        Self {
            vocab_size: 248_320,
            hidden_size: 1024,
            intermediate_size: 3584,
            num_hidden_layers: 24,
            num_attention_heads: 8,
            num_key_value_heads: 2,
            head_dim: 256,
            linear_num_key_heads: 16,
            linear_num_value_heads: 16,
            linear_key_head_dim: 128,
            linear_value_head_dim: 128,
            linear_conv_kernel_dim: 4,
            full_attention_interval: 4,
            tie_word_embeddings: true,
            max_position_embeddings: 262_144,
            rms_norm_eps: 1e-6,
            rope_parameters: rope(256),
        }
    }

    /// Qwen3.5-27B.
    pub fn qwen_27b() -> Self {
        Self {
            hidden_size: 5120,
            intermediate_size: 17_408,
            num_hidden_layers: 64,
            num_attention_heads: 24,
            num_key_value_heads: 4,
            linear_num_value_heads: 48,
            tie_word_embeddings: false,
            ..Self::qwen_0_8b()
        }
    }

    /// Small enough for a test, with every kind of layer; splits over 1, 2 and 4 ranks.
    pub fn tiny() -> Self {
        Self {
            vocab_size: 512,
            hidden_size: 64,
            intermediate_size: 128,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 4,
            head_dim: 32,
            linear_num_key_heads: 4,
            linear_num_value_heads: 4,
            linear_key_head_dim: 16,
            linear_value_head_dim: 16,
            max_position_embeddings: 4096,
            rope_parameters: rope(32),
            ..Self::qwen_0_8b()
        }
    }

    /// A shape by name (`0.8b`, `27b`, `tiny`), or that of a `config.json`.
    ///
    /// # Errors
    ///
    /// No such name and no such file, or a file without the keys of this family.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "0.8b" => Ok(Self::qwen_0_8b()),
            "27b" => Ok(Self::qwen_27b()),
            "tiny" => Ok(Self::tiny()),
            _ => Self::from_file(Path::new(name))
                .with_context(|| format!("shape {name} (0.8b, 27b, tiny or a config.json)")),
        }
    }

    fn from_file(path: &Path) -> anyhow::Result<Self> {
        let config: Value = serde_json::from_slice(&std::fs::read(path)?)?;
        let text = config.get("text_config").unwrap_or(&config);
        let mut shape = text.clone();
        // Some checkpoints keep these at the root, and list the layers instead of giving an interval.
        if let Some(tied) = config.get("tie_word_embeddings") {
            shape["tie_word_embeddings"] = tied.clone();
        }
        if let Some(kinds) = text["layer_types"].as_array() {
            let first = kinds.iter().position(|kind| kind == "full_attention");
            let interval = first.map_or(kinds.len() + 1, |first| first + 1);
            let regular = kinds.iter().enumerate().all(|(layer, kind)| {
                (kind == "full_attention") == (layer + 1).is_multiple_of(interval)
            });
            ensure!(regular, "layer_types has no regular interval of full attention");
            shape["full_attention_interval"] = interval.into();
        }
        let shape: Self = serde_json::from_value(shape)?;
        if shape.num_hidden_layers == 0 || shape.hidden_size == 0 {
            bail!("a model needs layers and a hidden size");
        }
        Ok(shape)
    }

    /// Whether a layer has full attention; the others have linear attention.
    pub fn is_full(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.full_attention_interval)
    }

    /// The `config.json` of a text-only checkpoint of this shape.
    pub fn config(&self, eos: u32) -> anyhow::Result<Value> {
        let mut config = serde_json::to_value(self)?;
        let kinds: Vec<&str> = (0..self.num_hidden_layers)
            .map(|layer| if self.is_full(layer) { "full_attention" } else { "linear_attention" })
            .collect();
        config["layer_types"] = json!(kinds);
        config["architectures"] = json!(["Qwen3_5ForCausalLM"]);
        config["model_type"] = json!("qwen3_5_text");
        config["hidden_act"] = json!("silu");
        config["attention_bias"] = json!(false);
        config["dtype"] = json!("bfloat16");
        config["mtp_num_hidden_layers"] = json!(0);
        config["eos_token_id"] = json!(eos);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_survives_its_config() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        for shape in [Shape::qwen_0_8b(), Shape::qwen_27b(), Shape::tiny()] {
            std::fs::write(&path, shape.config(7).unwrap().to_string()).unwrap();
            assert_eq!(Shape::named(path.to_str().unwrap()).unwrap(), shape);
        }
        let sections = Shape::qwen_0_8b().rope_parameters["mrope_section"].clone();
        assert_eq!(sections.as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>(), 32);
    }

    #[test]
    fn published_layouts_are_read() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let shape =
            |name: &str| Shape::from_file(&fixtures.join(name).join("config.json")).unwrap();
        assert!(!shape("tiny-sharded").tie_word_embeddings);
        assert_eq!(shape("tiny-sharded").num_key_value_heads, 1);
        assert_eq!(shape("tiny-tied").num_hidden_layers, 8);
        assert!(shape("tiny-tied").is_full(3) && !shape("tiny-tied").is_full(4));
    }

    #[test]
    fn an_unknown_shape_is_named() {
        let error = format!("{:#}", Shape::named("0.9b").unwrap_err());
        assert!(error.starts_with("shape 0.9b (0.8b, 27b, tiny or a config.json): "), "{error}");
    }
}
