//! Bad input: one clear line, exit code 2, and nothing started.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use pocket_tests::process::Finished;
use serde_json::{Value, json};

use crate::common::{fixture, pocketd};

/// One line on standard error that holds all the parts, nothing on standard output, exit code 2.
fn refused(finished: &Finished, parts: &[&str]) {
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert_eq!(finished.stdout, "", "{finished:?}");
    let line = finished.stderr.lines().last().unwrap_or_default();
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line:?}; all: {finished:?}");
    }
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

/// A copy of a fixture that a test may spoil.
fn copy(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

/// Rewrites the header of a safetensors file; the data stays.
fn edit_header(file: &Path, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let bytes = fs::read(file).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(header.as_object_mut().unwrap());
    let text = header.to_string();
    let mut spoilt = (text.len() as u64).to_le_bytes().to_vec();
    spoilt.extend(text.as_bytes());
    spoilt.extend(&bytes[8 + length..]);
    fs::write(file, spoilt).unwrap();
}

fn generate(model: &Path) -> Finished {
    pocketd(&[
        "generate",
        "--ids",
        "1,2,3",
        "--max-tokens",
        "2",
        "--model",
        model.to_str().unwrap(),
    ])
}

const NORM: &str = "model.layers.1.input_layernorm.weight";

#[test]
fn no_such_directory() {
    refused(&generate(Path::new("/no/such/place")), &["/no/such/place"]);
}

#[test]
fn truncated_weights() {
    let (_keep, model) = copy("tiny-tied");
    let file = model.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    for length in [0, 4, 100, bytes.len() - 1] {
        fs::write(&file, &bytes[..length]).unwrap();
        refused(&generate(&model), &["model.safetensors"]);
    }
}

/// L7: headers no writer should write.
#[test]
fn impossible_headers() {
    type Edit = fn(&mut serde_json::Map<String, Value>);
    let edits: [Edit; 5] = [
        |header| header[NORM]["dtype"] = json!(""),
        |header| header[NORM]["data_offsets"] = json!([0, 1_u64 << 40]),
        |header| header[NORM]["data_offsets"] = json!([64, 0]),
        |header| header[NORM]["shape"] = json!([u64::MAX, 4]),
        |header| header[NORM] = json!({"dtype": "", "shape": [], "data_offsets": [0, 0]}),
    ];
    for edit in edits {
        let (_keep, model) = copy("tiny-tied");
        edit_header(&model.join("model.safetensors"), edit);
        refused(&generate(&model), &["model.safetensors"]);
    }
    let (_keep, model) = copy("tiny-tied");
    fs::write(model.join("model.safetensors"), [0xff; 64]).unwrap();
    refused(&generate(&model), &["model.safetensors"]);
}

/// L3: never in this checkpoint; its file absent (L1); its file there without it.
#[test]
fn a_missing_tensor_in_three_ways() {
    let (_keep, model) = copy("tiny-tied");
    edit_header(&model.join("model.safetensors"), |header| {
        let moved = header.remove(NORM).unwrap();
        header.insert("model.layers.1.forgotten.weight".into(), moved);
    });
    let never = generate(&model);
    refused(&never, &[NORM]);

    let (_keep, model) = copy("tiny-sharded");
    fs::remove_file(model.join("model-00002-of-00003.safetensors")).unwrap();
    let absent = generate(&model);
    refused(&absent, &["model-00002-of-00003.safetensors"]);

    let (_keep, model) = copy("tiny-sharded");
    let mut name = String::new();
    edit_header(&model.join("model-00002-of-00003.safetensors"), |header| {
        name = header.keys().find(|name| name.contains("layers.")).unwrap().clone();
        let moved = header.remove(&name).unwrap();
        header.insert(format!("{name}.elsewhere"), moved);
    });
    // Messages name a tensor the same in both layouts.
    let name = name.replace("model.language_model.", "model.");
    let differs = generate(&model);
    refused(&differs, &[&name, "model-00002-of-00003.safetensors"]);
    let messages = [&never, &absent, &differs].map(|finished| {
        let line = finished.stderr.lines().last().unwrap();
        line.replace(NORM, "").replace(&name, "")
    });
    assert_ne!(messages[0], messages[1]);
    assert_ne!(messages[1], messages[2]);
    assert_ne!(messages[0], messages[2]);
}

/// L4: the configuration promises a head of its own.
#[test]
fn an_untied_model_without_a_head() {
    let (_keep, model) = copy("tiny-tied");
    edit_config(&model, |config| config["tie_word_embeddings"] = json!(false));
    refused(&generate(&model), &["lm_head.weight"]);
}

#[test]
fn a_wrong_shape() {
    let (_keep, model) = copy("tiny-tied");
    edit_header(&model.join("model.safetensors"), |header| header[NORM]["shape"] = json!([48, 2]));
    refused(&generate(&model), &[NORM, "48", "96"]);
}

#[test]
fn an_unknown_architecture() {
    let (_keep, model) = copy("tiny-tied");
    edit_config(&model, |config| {
        config["model_type"] = json!("llama");
        config["architectures"] = json!(["LlamaForCausalLM"]);
    });
    refused(&generate(&model), &["llama", "qwen3_5"]);
}

#[test]
fn a_configuration_that_is_not_json() {
    let (_keep, model) = copy("tiny-tied");
    fs::write(model.join("config.json"), "{\"hidden_size\": 96,").unwrap();
    refused(&generate(&model), &["config.json"]);
}

#[test]
fn a_number_of_ranks_that_does_not_divide() {
    let three = ["generate", "hello", "--tensor-parallel-size", "3"];
    refused(&pocketd(&three), &["3", "num_attention_heads", "8"]);
    for odd in ["0", "-1", "two", "17"] {
        let option = format!("--tensor-parallel-size={odd}");
        refused(&pocketd(&["generate", "hello", &option]), &["tensor-parallel-size", odd]);
    }
}

#[test]
fn prompts_that_cannot_be() {
    refused(&pocketd(&["generate", "--ids", "1,1024"]), &["1024"]);
    refused(&pocketd(&["generate", "--ids", "1,99999999999"]), &["99999999999"]);
    refused(&pocketd(&["generate", "--raw", ""]), &["empty"]);
    refused(&pocketd(&["score", ""]), &["empty"]);
    let long = ["generate", "--ids", "1,2,3,4,5,6,7,8", "--max-model-len", "6"];
    refused(&pocketd(&long), &["8", "6"]);
    let much = ["generate", "hello", "--max-model-len", "64", "--max-tokens", "64"];
    refused(&pocketd(&much), &["--max-tokens", "64"]);
}

#[test]
fn values_that_cannot_be() {
    for (option, value) in [
        ("--temperature", "-1"),
        ("--temperature", "NaN"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-k", "-2"),
        ("--max-tokens", "0"),
        ("--seed", "x"),
        ("--max-num-batched-tokens", "100"),
        ("--device", "gpu"),
    ] {
        // Settings are named as on the command line, sampling parameters as in the API.
        let finished = pocketd(&["generate", "hello", &format!("{option}={value}")]);
        refused(&finished, &[value]);
        let (name, line) = (option.trim_start_matches('-'), finished.stderr.replace('_', "-"));
        assert!(line.contains(name), "no {name} in {line}");
    }
    refused(&pocketd(&["generate", "hello", "--max-modl-len", "5"]), &["--max-model-len"]);
}

#[test]
fn a_settings_file_with_an_unknown_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pocketd.toml");
    fs::write(&file, "max_modl_len = 100\n").unwrap();
    let path = file.display().to_string();
    refused(
        &pocketd(&["generate", "hello", "--config", &path]),
        &["max_modl_len", "max_model_len"],
    );
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&pocketd(&["serve", "--host", "127.0.0.1", "--port", &port]), &[&port, "in use"]);
}
