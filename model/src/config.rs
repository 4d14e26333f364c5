//! `config.json`: the shape of a model.
//!
//! Two layouts are read. A text-only checkpoint (`model_type` `qwen3_5_text`) has all keys at the root;
//! a multimodal one (`qwen3_5`) keeps the language model's under `text_config`, beside a vision tower
//! that is left alone. Every number is checked when it is read, so that no later arithmetic on it can
//! overflow and no later message has to guess where a shape came from. Unknown keys are normal.

mod keys;

use pocket_device::{AttentionShape, LinearShape, StorageType};
use serde::Serialize;
use serde_json::Value;

use crate::ModelError;
pub(crate) use keys::Keys;

/// `model_type` values that are served, with the class names that go with them.
pub const SUPPORTED: [(&str, &str); 2] =
    [("qwen3_5", "Qwen3_5ForConditionalGeneration"), ("qwen3_5_text", "Qwen3_5ForCausalLM")];

/// The token mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Gated DeltaNet: state of a fixed size.
    Linear,
    /// Gated softmax attention: keys and values for every token.
    Full,
}

/// The shape of a Qwen3.5 dense hybrid model, whole (not one rank's share).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Class name from `architectures`, or the one that goes with `model_type`.
    pub architecture: String,
    /// `model_type` at the root: `qwen3_5` or `qwen3_5_text`.
    pub model_type: String,
    /// Token ids the embedding and the head know.
    pub vocab_size: usize,
    /// Numbers in a token's hidden vector.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// The mixer of each layer.
    pub layers: Vec<LayerKind>,
    /// Query heads of full attention.
    pub heads: usize,
    /// Key/value heads of full attention; divides `heads`.
    pub kv_heads: usize,
    /// Numbers in a head of full attention.
    pub head_dim: usize,
    /// Leading numbers of a head that rotate; even.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether q, k, v and o projections have biases.
    pub attention_bias: bool,
    /// Query/key heads of linear attention.
    pub linear_key_heads: usize,
    /// Value heads of linear attention; a multiple of `linear_key_heads`.
    pub linear_value_heads: usize,
    /// Numbers in a query or key head of linear attention.
    pub linear_key_dim: usize,
    /// Numbers in a value head of linear attention.
    pub linear_value_dim: usize,
    /// Taps of the causal convolution.
    pub linear_kernel: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Positions the model was trained for.
    pub max_position_embeddings: usize,
    /// Ids that end a generation, from `config.json` only.
    pub eos_token_ids: Vec<u32>,
    /// Multi-token-prediction layers in the checkpoint.
    pub mtp_layers: usize,
    /// Storage type the file declares; each tensor's own header decides.
    #[serde(serialize_with = "storage_name")]
    pub dtype: StorageType,
}

fn storage_name<S: serde::Serializer>(dtype: &StorageType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype_name(*dtype))
}

/// The name of a storage type as `config.json` spells it.
pub fn dtype_name(dtype: StorageType) -> &'static str {
    match dtype {
        StorageType::Bf16 => "bfloat16",
        StorageType::F16 => "float16",
        StorageType::F32 => "float32",
    }
}

impl ModelConfig {
    /// Reads the text of a `config.json`. `file` names it in errors.
    pub fn parse(file: &str, text: &[u8]) -> Result<ModelConfig, ModelError> {
        let root = Keys::parse(file, text)?;
        let (model_type, architecture) = family(&root)?;
        let text = root.object("text_config")?;
        if model_type == "qwen3_5" && text.is_none() {
            return Err(root.missing("text_config", "the language model's settings"));
        }
        let text = text.unwrap_or_else(|| root.clone());
        refuse_variants(&root, &text)?;

        let hidden_size = text.count("hidden_size", 1 << 20)?;
        let heads = text.count("num_attention_heads", 1 << 10)?;
        let kv_heads = text.count("num_key_value_heads", 1 << 10)?;
        if heads % kv_heads != 0 {
            return Err(text.conflict(format!(
                "num_attention_heads is {heads}, which num_key_value_heads {kv_heads} does not divide"
            )));
        }
        let head_dim = text.count("head_dim", 1 << 10)?;
        let linear_key_heads = text.count("linear_num_key_heads", 1 << 10)?;
        let linear_value_heads = text.count("linear_num_value_heads", 1 << 10)?;
        if linear_value_heads % linear_key_heads != 0 {
            return Err(text.conflict(format!(
                "linear_num_value_heads is {linear_value_heads}, which linear_num_key_heads \
                 {linear_key_heads} does not divide"
            )));
        }
        let (rope_theta, rotary_dim) = rotary(&text, head_dim)?;
        let vocab_size = text.count("vocab_size", 1 << 24)?;

        let mut eos_token_ids = Vec::new();
        for keys in [&root, &text] {
            for id in token_ids(keys, "eos_token_id", Some(vocab_size))?.unwrap_or_default() {
                if !eos_token_ids.contains(&id) {
                    eos_token_ids.push(id);
                }
            }
        }
        Ok(ModelConfig {
            architecture,
            model_type,
            vocab_size,
            hidden_size,
            intermediate_size: text.count("intermediate_size", 1 << 20)?,
            layers: layers(&text)?,
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            rope_theta,
            attention_bias: text.bool("attention_bias")?.unwrap_or(false),
            linear_key_heads,
            linear_value_heads,
            linear_key_dim: text.count("linear_key_head_dim", 1 << 10)?,
            linear_value_dim: text.count("linear_value_head_dim", 1 << 10)?,
            linear_kernel: text.count("linear_conv_kernel_dim", 64)?,
            rms_norm_eps: text.positive("rms_norm_eps", 1.0)? as f32,
            tie_word_embeddings: tied(&root, &text)?,
            max_position_embeddings: text.count("max_position_embeddings", 1 << 30)?,
            eos_token_ids,
            mtp_layers: text.optional_count("mtp_num_hidden_layers", 0, 64)?.unwrap_or(0),
            dtype: dtype(&root, &text)?,
        })
    }

    /// Number of full-attention layers.
    pub fn full_layers(&self) -> usize {
        self.layers.iter().filter(|kind| **kind == LayerKind::Full).count()
    }

    /// Number of linear-attention layers.
    pub fn linear_layers(&self) -> usize {
        self.layers.len() - self.full_layers()
    }

    /// Whether the checkpoint is of the multimodal layout (its vision tower is not used).
    pub fn is_multimodal(&self) -> bool {
        self.model_type == "qwen3_5"
    }

    /// Full attention of the whole model.
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rotary_dim: self.rotary_dim,
            eps: self.rms_norm_eps,
        }
    }

    /// Linear attention of the whole model.
    pub fn linear_shape(&self) -> LinearShape {
        LinearShape {
            key_heads: self.linear_key_heads,
            value_heads: self.linear_value_heads,
            key_dim: self.linear_key_dim,
            value_dim: self.linear_value_dim,
            kernel: self.linear_kernel,
        }
    }
}

/// `model_type` and class name, both of the family this crate computes.
fn family(root: &Keys) -> Result<(String, String), ModelError> {
    let model_type = root
        .text("model_type")?
        .ok_or_else(|| root.missing("model_type", &supported(|(kind, _)| kind)))?;
    let Some((_, class)) = SUPPORTED.iter().find(|(kind, _)| *kind == model_type) else {
        return Err(ModelError::UnknownArchitecture {
            file: root.file().to_owned(),
            key: "model_type",
            found: model_type,
            supported: supported(|(kind, _)| kind),
        });
    };
    let Some(classes) = root.list("architectures")? else {
        return Ok((model_type, (*class).to_owned()));
    };
    let known = classes
        .iter()
        .filter_map(Value::as_str)
        .find(|name| SUPPORTED.iter().any(|(_, class)| class == name));
    match known {
        Some(name) => Ok((model_type, name.to_owned())),
        None => Err(ModelError::UnknownArchitecture {
            file: root.file().to_owned(),
            key: "architectures",
            found: Value::Array(classes).to_string(),
            supported: supported(|(_, class)| class),
        }),
    }
}

fn supported(name: impl Fn((&'static str, &'static str)) -> &'static str) -> String {
    SUPPORTED.map(name).join(", ")
}

/// Settings that would change what the forward pass computes, at values it does not compute.
fn refuse_variants(root: &Keys, text: &Keys) -> Result<(), ModelError> {
    for keys in [root, text] {
        if let Some(value) = keys.value("quantization_config") {
            return Err(keys.wrong("quantization_config", value, "weights that are not quantized"));
        }
    }
    text.require_text("hidden_act", &["silu", "swish"])?;
    text.require_text("output_gate_type", &["silu", "swish"])?;
    for (key, needed) in [("attn_output_gate", true), ("mtp_use_dedicated_embeddings", false)] {
        match text.bool(key)? {
            Some(found) if found != needed => {
                return Err(text.wrong(key, &Value::Bool(found), &needed.to_string()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn layers(text: &Keys) -> Result<Vec<LayerKind>, ModelError> {
    let count = text.count("num_hidden_layers", 1 << 10)?;
    let interval = text.optional_count("full_attention_interval", 1, 1 << 10)?;
    let Some(types) = text.list("layer_types")? else {
        let Some(interval) = interval else {
            return Err(text.missing("layer_types", "a list, or full_attention_interval"));
        };
        let kind = |i: usize| match (i + 1) % interval {
            0 => LayerKind::Full,
            _ => LayerKind::Linear,
        };
        return Ok((0..count).map(kind).collect());
    };
    if types.len() != count {
        return Err(text.conflict(format!(
            "layer_types has {} entries, but num_hidden_layers is {count}",
            types.len()
        )));
    }
    let kind = |(i, value): (usize, &Value)| match value.as_str() {
        Some("linear_attention") => Ok(LayerKind::Linear),
        Some("full_attention") => Ok(LayerKind::Full),
        _ => Err(text.wrong(
            &format!("layer_types[{i}]"),
            value,
            "\"linear_attention\" or \"full_attention\"",
        )),
    };
    types.iter().enumerate().map(kind).collect()
}

/// Base frequency and rotated numbers a head. Newer files keep both in `rope_parameters`, older ones
/// at the top level beside `rope_scaling`.
fn rotary(text: &Keys, head_dim: usize) -> Result<(f64, usize), ModelError> {
    let mut theta = None;
    let mut factor = None;
    let parameters = [text.object("rope_parameters")?, text.object("rope_scaling")?];
    for keys in parameters.iter().flatten() {
        keys.require_text("rope_type", &["default", "mrope"])?;
        keys.require_text("type", &["default", "mrope"])?;
    }
    for keys in parameters.iter().flatten().chain([text]) {
        agree(keys, "rope_theta", 1e12, &mut theta)?;
        agree(keys, "partial_rotary_factor", 1.0, &mut factor)?;
    }
    let theta =
        theta.ok_or_else(|| text.missing("rope_parameters.rope_theta", "a positive number"))?;
    let factor = factor.ok_or_else(|| {
        text.missing("rope_parameters.partial_rotary_factor", "a number above 0, at most 1")
    })?;
    // Truncated as the reference does it: 80 * 0.4 is a hair above 32.
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return Err(text.conflict(format!(
            "head_dim {head_dim} x partial_rotary_factor {factor} rotates {rotary_dim} numbers of a \
             head: expected an even count of at least 2"
        )));
    }
    Ok((theta, rotary_dim))
}

/// Takes `key` into `seen`, refusing a value that differs from one already there.
fn agree(keys: &Keys, key: &str, most: f64, seen: &mut Option<f64>) -> Result<(), ModelError> {
    if keys.value(key).is_none() {
        return Ok(());
    }
    let found = keys.positive(key, most)?;
    match *seen {
        Some(first) if first != found => {
            Err(keys.conflict(format!("{key} is given twice: {first} and {found}")))
        }
        _ => {
            *seen = Some(found);
            Ok(())
        }
    }
}

fn tied(root: &Keys, text: &Keys) -> Result<bool, ModelError> {
    match (root.bool("tie_word_embeddings")?, text.bool("tie_word_embeddings")?) {
        (Some(outer), Some(inner)) if outer != inner => Err(root.conflict(format!(
            "tie_word_embeddings is {outer} at the root and {inner} in text_config"
        ))),
        (Some(value), _) | (None, Some(value)) => Ok(value),
        // The default of the architecture.
        (None, None) => Ok(false),
    }
}

fn dtype(root: &Keys, text: &Keys) -> Result<StorageType, ModelError> {
    for (keys, key) in
        [(text, "dtype"), (text, "torch_dtype"), (root, "dtype"), (root, "torch_dtype")]
    {
        let Some(name) = keys.text(key)? else { continue };
        return match name.strip_prefix("torch.").unwrap_or(&name) {
            "bfloat16" => Ok(StorageType::Bf16),
            "float16" => Ok(StorageType::F16),
            "float32" => Ok(StorageType::F32),
            _ => Err(keys.wrong(key, &Value::String(name), "bfloat16, float16 or float32")),
        };
    }
    Ok(StorageType::Bf16)
}

/// One id or a list of ids under `key`, each within the vocabulary when its size is known.
pub(crate) fn token_ids(
    keys: &Keys,
    key: &str,
    vocab_size: Option<usize>,
) -> Result<Option<Vec<u32>>, ModelError> {
    let Some(value) = keys.value(key) else { return Ok(None) };
    let most = vocab_size.unwrap_or(u32::MAX as usize) as u64;
    let id = |value: &Value| {
        value.as_u64().filter(|id| *id < most).map(|id| id as u32).ok_or_else(|| {
            keys.wrong(key, value, &format!("a token id below {most}, or a list of them"))
        })
    };
    match value {
        Value::Array(list) => list.iter().map(id).collect::<Result<_, _>>().map(Some),
        single => Ok(Some(vec![id(single)?])),
    }
}

/// The shape of the smallest published model, with fewer layers, for tests to vary.
#[cfg(test)]
pub(crate) fn small() -> ModelConfig {
    ModelConfig::parse("config.json", tests::TEXT.as_bytes()).unwrap()
}

#[cfg(test)]
mod tests;
