use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::*;

pub(super) const TEXT: &str = r#"{
  "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
  "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu",
  "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
  "max_position_embeddings": 262144, "tie_word_embeddings": true, "attention_bias": false,
  "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
  "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10], "mrope_interleaved": true},
  "eos_token_id": 248044, "mtp_num_hidden_layers": 1, "transformers_version": "5.24.0"
}"#;

fn text() -> Value {
    serde_json::from_str(TEXT).unwrap()
}

fn parse(value: &Value) -> Result<ModelConfig, ModelError> {
    ModelConfig::parse("config.json", value.to_string().as_bytes())
}

/// The text-only file with one key changed, or removed when `value` is absent.
fn with(key: &str, value: Option<Value>) -> Value {
    let mut config = text();
    let map = config.as_object_mut().unwrap();
    match value {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    };
    config
}

/// The same model in the multimodal layout.
fn multimodal() -> Value {
    let mut inner = text();
    inner.as_object_mut().unwrap().remove("architectures");
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "image_token_id": 248056, "text_config": inner, "vision_config": {"depth": 12},
        "tie_word_embeddings": true,
    })
}

#[test]
fn a_text_only_file() {
    use LayerKind::{Full, Linear};
    let config = parse(&text()).unwrap();
    assert_eq!(config.layers, [Linear, Linear, Linear, Full]);
    assert_eq!((config.full_layers(), config.linear_layers()), (1, 3));
    assert_eq!((config.rotary_dim, config.rope_theta), (64, 1e7));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (8, 2, 256));
    assert_eq!(config.eos_token_ids, [248_044]);
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert!(config.tie_word_embeddings && !config.attention_bias && !config.is_multimodal());
    assert_eq!(config.attention_shape().projection(), (2 * 8 + 2 * 2) * 256);
    assert_eq!(config.linear_shape().channels(), 3 * 16 * 128);
}

#[test]
fn the_multimodal_layout_gives_the_same_model() {
    let expected = ModelConfig {
        architecture: "Qwen3_5ForConditionalGeneration".to_owned(),
        model_type: "qwen3_5".to_owned(),
        ..parse(&text()).unwrap()
    };
    assert_eq!(parse(&multimodal()).unwrap(), expected);

    // Tying may be said outside, inside or both ways alike; saying it both ways unlike is refused.
    let mut outside = multimodal();
    outside["text_config"].as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(parse(&outside).unwrap().tie_word_embeddings);
    let mut inside = multimodal();
    inside.as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(parse(&inside).unwrap().tie_word_embeddings);
    let mut unlike = multimodal();
    unlike["tie_word_embeddings"] = json!(false);
    assert_eq!(
        parse(&unlike).unwrap_err().to_string(),
        "config.json: tie_word_embeddings is false at the root and true in text_config"
    );
}

#[test]
fn older_spellings_mean_the_same() {
    let mut old = text();
    let map = old.as_object_mut().unwrap();
    for key in ["rope_parameters", "layer_types", "dtype"] {
        map.remove(key);
    }
    map.insert("rope_theta".to_owned(), json!(10_000_000));
    map.insert("partial_rotary_factor".to_owned(), json!(0.25));
    map.insert("rope_scaling".to_owned(), json!({"type": "mrope", "mrope_section": [11, 11, 10]}));
    map.insert("full_attention_interval".to_owned(), json!(4));
    map.insert("torch_dtype".to_owned(), json!("torch.bfloat16"));
    assert_eq!(parse(&old).unwrap(), parse(&text()).unwrap());
}

#[test]
fn a_null_counts_as_absent_and_end_ids_may_be_a_list() {
    assert_eq!(parse(&with("rope_scaling", Some(Value::Null))).unwrap(), parse(&text()).unwrap());
    let config = parse(&with("eos_token_id", Some(json!([5, 7, 5])))).unwrap();
    assert_eq!(config.eos_token_ids, [5, 7]);
    assert!(parse(&with("eos_token_id", None)).unwrap().eos_token_ids.is_empty());
}

#[test]
fn rotary_width_is_truncated_like_the_reference() {
    let mut config = with("head_dim", Some(json!(80)));
    config["rope_parameters"]["partial_rotary_factor"] = json!(0.4);
    assert_eq!(parse(&config).unwrap().rotary_dim, 32);
}

#[test]
fn each_bad_value_is_one_line_naming_key_and_value() {
    let linear = json!("linear_attention");
    #[rustfmt::skip]
    let table: Vec<(Value, &str)> = vec![
        (with("hidden_size", None), "hidden_size is missing: expected a whole number from 1 to"),
        (with("hidden_size", Some(json!(0))), "hidden_size is 0: expected a whole number from 1"),
        (with("head_dim", Some(json!(-256))), "head_dim is -256: expected a whole number"),
        (with("vocab_size", Some(json!("many"))), "vocab_size is \"many\": expected a whole number"),
        (with("vocab_size", Some(json!(1u64 << 40))), "vocab_size is 1099511627776: expected"),
        (with("num_hidden_layers", Some(json!(1e300))), "num_hidden_layers is 1e+300: expected"),
        (with("num_hidden_layers", Some(json!(5))), "layer_types has 4 entries, but num_hidden_layers is 5"),
        (with("layer_types", Some(json!([linear, linear, linear, "mamba"]))), "layer_types[3] is \"mamba\": expected"),
        (with("layer_types", Some(json!("full"))), "layer_types is \"full\": expected a list"),
        (with("layer_types", None), "layer_types is missing: expected a list, or full_attention_interval"),
        (with("full_attention_interval", Some(json!(0))), "full_attention_interval is 0: expected"),
        (with("num_key_value_heads", Some(json!(3))), "num_attention_heads is 8, which num_key_value_heads 3 does not divide"),
        (with("linear_num_value_heads", Some(json!(24))), "linear_num_value_heads is 24, which linear_num_key_heads 16 does not divide"),
        (with("rms_norm_eps", Some(json!(0.0))), "rms_norm_eps is 0.0: expected a number above 0"),
        (with("rms_norm_eps", Some(json!("1e-6"))), "rms_norm_eps is \"1e-6\": expected a number"),
        (with("rope_theta", Some(json!(10000))), "rope_theta is given twice: 10000000 and 10000"),
        (with("rope_parameters", None), "rope_parameters.rope_theta is missing"),
        (with("rope_parameters", Some(json!({"rope_theta": 1e7}))), "rope_parameters.partial_rotary_factor is missing"),
        (with("rope_parameters", Some(json!({"rope_type": "yarn", "rope_theta": 1e7}))), "rope_parameters.rope_type is \"yarn\": expected default"),
        (with("rope_parameters", Some(json!({"rope_theta": 1e7, "partial_rotary_factor": 2}))), "rope_parameters.partial_rotary_factor is 2: expected a number above 0, at most 1"),
        (with("head_dim", Some(json!(12))), "head_dim 12 x partial_rotary_factor 0.25 rotates 3 numbers of a head: expected an even count"),
        (with("head_dim", Some(json!(3))), "rotates 0 numbers of a head"),
        (with("hidden_act", Some(json!("gelu"))), "hidden_act is \"gelu\": expected silu"),
        (with("attn_output_gate", Some(json!(false))), "attn_output_gate is false: expected true"),
        (with("quantization_config", Some(json!({"bits": 4}))), "quantization_config is {\"bits\":4}: expected weights that are not quantized"),
        (with("torch_dtype", None), ""),
        (with("dtype", Some(json!("float8_e4m3fn"))), "dtype is \"float8_e4m3fn\": expected bfloat16, float16 or float32"),
        (with("eos_token_id", Some(json!([1, 248_320]))), "eos_token_id is 248320: expected a token id below 248320"),
        (with("eos_token_id", Some(json!(-1))), "eos_token_id is -1: expected a token id"),
        (with("tie_word_embeddings", Some(json!(1))), "tie_word_embeddings is 1: expected true or false"),
        (with("model_type", None), "model_type is missing: expected qwen3_5, qwen3_5_text"),
        (with("model_type", Some(json!("llama"))), "model_type llama is not supported: this program runs qwen3_5, qwen3_5_text"),
        (with("model_type", Some(json!("qwen3_5_moe"))), "model_type qwen3_5_moe is not supported"),
        (with("architectures", Some(json!(["LlamaForCausalLM"]))), "architectures [\"LlamaForCausalLM\"] is not supported: this program runs Qwen3_5ForConditionalGeneration, Qwen3_5ForCausalLM"),
        (with("model_type", Some(json!("qwen3_5"))), "text_config is missing: expected the language model's settings"),
    ];
    for (config, expected) in table {
        if expected.is_empty() {
            assert!(parse(&config).is_ok(), "an absent key that nothing needs");
            continue;
        }
        let message = parse(&config).unwrap_err().to_string();
        assert!(message.starts_with("config.json: "), "{message}");
        assert!(message.contains(expected), "expected {expected:?} in {message:?}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn text_that_is_no_object_says_where_it_breaks() {
    let message =
        |text: &str| ModelConfig::parse("x/config.json", text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        message("{\"a\": }"),
        "x/config.json: not valid JSON: expected value at line 1 column 7"
    );
    assert_eq!(message("[]"), "x/config.json: expected a JSON object");
    assert!(message("").contains("EOF while parsing"), "{}", message(""));
}

#[test]
fn a_long_value_is_cut_in_the_message() {
    let message =
        parse(&with("hidden_size", Some(json!("é".repeat(5000))))).unwrap_err().to_string();
    assert!(message.len() < 400, "{}", message.len());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    // Whatever the numbers: an error, or a shape whose tensors and shards can be computed.
    #[test]
    fn no_value_panics_here_or_later(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![
                any::<u64>().prop_map(Value::from),
                (0u64..2000).prop_map(Value::from),
                any::<f64>().prop_map(Value::from),
                Just(Value::Null),
                Just(json!([1, "a", {}])),
                Just(json!({"rope_theta": 2, "partial_rotary_factor": 0.5})),
            ]),
            1..4,
        ),
    ) {
        let mut config = text();
        for (at, value) in edits {
            let map = config.as_object_mut().unwrap();
            let key = map.keys().nth(at.index(map.len())).unwrap().clone();
            map.insert(key, value);
        }
        if let Ok(config) = parse(&config) {
            prop_assert!(!crate::checkpoint::names::needed(&config).is_empty());
            for world in crate::Shard::sizes(&config) {
                let last = crate::Shard::new(&config, world - 1, world).unwrap();
                prop_assert_eq!(last.vocab.end, config.vocab_size);
                prop_assert_eq!(last.heads.end, config.heads);
            }
        }
    }
}
