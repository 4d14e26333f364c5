//! Whole directories, sound and damaged. Each damaged one is a copy of a fixture with one thing wrong.

use std::collections::BTreeMap;
use std::fs;

use safetensors::tensor::{Dtype, TensorView as Written, serialize_to_file};
use serde_json::{Value, json};

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// A copy of a fixture that may be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    directory
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Rewrites a weight file with its tensors changed by `change`.
fn rewrite(file: &Path, change: impl FnOnce(&mut Tensors)) {
    let bytes = fs::read(file).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = read
        .iter()
        .map(|(name, view)| {
            (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        })
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, Written::new(*dtype, shape.clone(), data).unwrap())
    });
    serialize_to_file(views, None, file).unwrap();
}

/// Changes a JSON file of a directory.
fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// The message of a refusal, without the directory's name.
fn refusal(directory: &tempfile::TempDir) -> String {
    let message = Checkpoint::open(directory.path()).unwrap_err().to_string();
    let name = directory.path().display().to_string();
    assert!(message.contains(&name), "{message}");
    assert!(!message.contains('\n'), "{message}");
    message.replace(&name, "DIR")
}

#[test]
fn every_fixture_opens() {
    for (name, mapped, ignored) in
        [("tiny-tied", 108, 0), ("tiny-untied", 56, 0), ("tiny-sharded", 56, 3)]
    {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let coverage = checkpoint.coverage();
        assert_eq!(coverage.mapped.len(), mapped, "{name}");
        assert_eq!(coverage.unused_files, ["expected.safetensors"]);
        assert!(coverage.faults.is_empty() && coverage.missing.is_empty());
        assert_eq!(coverage.ignored.len(), ignored, "{name}: {:?}", coverage.ignored);
        assert_eq!(checkpoint.generation().eos_token_ids, [634]);
        assert_eq!(checkpoint.generation().do_sample, Some(false));
        for tensor in names::needed(checkpoint.config()) {
            let view = checkpoint.tensor(&tensor.name).unwrap();
            assert_eq!(view.shape, tensor.shape);
            assert_eq!(
                view.bytes.len(),
                tensor.shape.iter().product::<usize>() * view.dtype.size()
            );
        }
    }
}

#[test]
fn tensors_of_a_sharded_file_are_those_the_reference_reads() {
    let checkpoint = Checkpoint::open(&fixture("tiny-sharded")).unwrap();
    let bytes = fs::read(fixture("tiny-sharded").join("model-00002-of-00003.safetensors")).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let stored = "model.language_model.layers.0.linear_attn.norm.weight";
    let view = checkpoint.tensor("model.layers.0.linear_attn.norm.weight").unwrap();
    assert_eq!(view.dtype, pocket_device::StorageType::F32);
    assert_eq!(view.bytes, reference.tensor(stored).unwrap().data());
    assert_eq!(
        checkpoint.tensor(stored).unwrap_err().to_string(),
        format!("{}: tensor {stored} is not one of the model's", fixture("tiny-sharded").display())
    );
}

#[test]
fn the_demo_is_whole_and_has_its_small_files() {
    let demo = Checkpoint::demo().unwrap();
    assert_eq!(demo.coverage().faults, []);
    assert_eq!(demo.coverage().mapped.len(), 108);
    assert_eq!(demo.generation().eos_token_ids, [1023, 1021]);
    assert_eq!(demo.tensor(names::EMBEDDING).unwrap().to_f32().len(), 1024 * 128);
    assert!(demo.file("tokenizer.json").unwrap().unwrap().starts_with(b"{"));
    assert!(demo.file("tokenizer_config.json").unwrap().is_some());
    assert!(demo.file("chat_template.jinja").unwrap().is_none());
    assert_eq!((demo.directory(), demo.describe().as_str()), (None, "the demo model"));
}

#[test]
fn small_files_of_a_directory() {
    let checkpoint = Checkpoint::open(&fixture("tiny-tied")).unwrap();
    assert!(checkpoint.file("tokenizer.json").unwrap().unwrap().len() > 20_000);
    assert!(checkpoint.file("chat_template.jinja").unwrap().is_none());
}

#[test]
fn what_is_no_checkpoint_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let message = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    let absent = directory.path().join("absent");
    assert_eq!(
        message(&absent),
        format!("no checkpoint at {}: no such directory", absent.display())
    );
    assert!(message(directory.path()).ends_with("it has no config.json"));
    let file = directory.path().join("model.safetensors");
    fs::write(&file, b"").unwrap();
    assert!(message(&file).contains("not a directory; give the one that holds config.json"));
    fs::copy(fixture("tiny-tied").join("config.json"), directory.path().join("config.json"))
        .unwrap();
    assert!(message(directory.path()).contains("model.safetensors: 0 bytes long"));
    fs::remove_file(&file).unwrap();
    assert!(message(directory.path()).contains("it has no weights: expected model.safetensors"));
}

#[test]
fn a_checkpoint_without_generation_config_takes_the_end_ids_of_its_config() {
    let directory = copy("tiny-tied");
    fs::remove_file(directory.path().join(GENERATION_CONFIG)).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.generation().eos_token_ids, [634]);
    assert_eq!(checkpoint.generation().do_sample, None);
}

/// Report L1: with and without an index, the refusal names the shard.
#[test]
fn l1_a_shard_that_is_not_there_is_named() {
    let directory = copy("tiny-sharded");
    fs::remove_file(directory.path().join("model-00002-of-00003.safetensors")).unwrap();
    let message = refusal(&directory);
    assert!(
        message.starts_with(
            "DIR: model-00002-of-00003.safetensors is not there, though \
             model.safetensors.index.json names it: download it again (and "
        ),
        "{message}"
    );
    fs::remove_file(directory.path().join(index::INDEX)).unwrap();
    let message = refusal(&directory);
    assert!(
        message.starts_with(
            "DIR: model-00002-of-00003.safetensors is not there, though \
             model-00001-of-00003.safetensors is one of a set with it"
        ),
        "{message}"
    );
    // A link into a cache whose file was removed.
    std::os::unix::fs::symlink(
        directory.path().join("gone"),
        directory.path().join("model-00002-of-00003.safetensors"),
    )
    .unwrap();
    assert!(refusal(&directory).contains("model-00002-of-00003.safetensors is not there"));
}

#[test]
fn a_sharded_checkpoint_opens_without_its_index() {
    let directory = copy("tiny-sharded");
    fs::remove_file(directory.path().join(index::INDEX)).unwrap();
    assert_eq!(Checkpoint::open(directory.path()).unwrap().coverage().mapped.len(), 56);
}

/// Report L3: the three reasons a tensor can be missing for are three messages.
#[test]
fn l3_a_missing_tensor_gets_one_of_three_messages() {
    const STORED: &str = "model.language_model.norm.weight";
    let shard = "model-00002-of-00003.safetensors";
    let about_norm = |directory: &tempfile::TempDir| -> String {
        let checkpoint = Checkpoint::survey(directory.path()).unwrap();
        assert!(checkpoint.coverage().missing.contains(&names::FINAL_NORM.to_owned()));
        let faults = checkpoint.coverage().faults.iter().map(Fault::to_string);
        faults.filter(|fault| fault.contains("model.norm.weight")).collect::<Vec<_>>().join("; ")
    };

    let never = copy("tiny-sharded");
    rewrite(&never.path().join(shard), |tensors| {
        tensors.remove(STORED).unwrap();
    });
    let in_header_only = refusal(&never);
    edit(&never.path().join(index::INDEX), |index| {
        index["weight_map"].as_object_mut().unwrap().remove(STORED).unwrap();
    });
    let expected = "tensor model.norm.weight [64] was never in this checkpoint: no file has it and \
                    model.safetensors.index.json does not name it";
    assert_eq!(about_norm(&never), expected);
    assert_eq!(refusal(&never), format!("DIR: {expected}"));

    let absent = copy("tiny-sharded");
    fs::remove_file(absent.path().join(shard)).unwrap();
    assert_eq!(
        about_norm(&absent),
        "tensor model.norm.weight is in model-00002-of-00003.safetensors, which is not there: \
         download it again"
    );

    assert_eq!(
        in_header_only,
        "DIR: tensor model.norm.weight should be in model-00002-of-00003.safetensors by \
         model.safetensors.index.json, but the header of model-00002-of-00003.safetensors lacks it"
    );

    // Without an index the first two look alike from inside a header; absent files decide.
    let unindexed = copy("tiny-untied");
    rewrite(&unindexed.path().join(index::SINGLE), |tensors| {
        tensors.remove("model.norm.weight").unwrap();
    });
    assert_eq!(
        refusal(&unindexed),
        "DIR: tensor model.norm.weight [64] was never in this checkpoint: model.safetensors does not \
         have it"
    );
    fs::remove_file(absent.path().join(index::INDEX)).unwrap();
    assert!(
        about_norm(&absent).contains("is in model-00002-of-00003.safetensors, which is not there")
    );
}

/// Report L4.
#[test]
fn l4_an_untied_head_has_to_be_there() {
    let directory = copy("tiny-untied");
    rewrite(&directory.path().join(index::SINGLE), |tensors| {
        tensors.remove(names::HEAD).unwrap();
    });
    assert_eq!(
        refusal(&directory),
        "DIR: tensor lm_head.weight [640, 64] was never in this checkpoint: model.safetensors does \
         not have it, and config.json says that the head is not tied to the embedding"
    );
    // The same files, said to be tied, are whole.
    edit(&directory.path().join(CONFIG), |config| config["tie_word_embeddings"] = json!(true));
    assert!(Checkpoint::open(directory.path()).is_ok());
}

#[test]
fn a_head_beside_a_tied_embedding_is_left_alone() {
    let directory = copy("tiny-untied");
    edit(&directory.path().join(CONFIG), |config| config["tie_word_embeddings"] = json!(true));
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let ignored = &checkpoint.coverage().ignored;
    assert_eq!(ignored.len(), 1);
    assert_eq!(
        (ignored[0].tensor.name.as_str(), ignored[0].because),
        (names::HEAD, "tied to the embedding")
    );
    assert!(checkpoint.tensor(names::HEAD).is_err());
}

#[test]
fn index_and_headers_are_held_against_each_other() {
    const STORED: &str = "model.language_model.norm.weight";
    let index = |change: fn(&mut serde_json::Map<String, Value>)| {
        let directory = copy("tiny-sharded");
        edit(&directory.path().join(index::INDEX), |index| {
            change(index["weight_map"].as_object_mut().unwrap());
        });
        refusal(&directory)
    };
    assert_eq!(
        index(|map| {
            map.insert(STORED.to_owned(), json!("model-00001-of-00003.safetensors"));
        }),
        "DIR: tensor model.norm.weight is in model-00002-of-00003.safetensors, but \
         model.safetensors.index.json puts it in model-00001-of-00003.safetensors"
    );
    assert_eq!(
        index(|map| {
            map.remove(STORED);
        }),
        "DIR: tensor model.norm.weight is in model-00002-of-00003.safetensors, but \
         model.safetensors.index.json does not name it"
    );
    assert_eq!(
        index(|map| {
            map.insert("model.extra".to_owned(), json!("model-00001-of-00003.safetensors"));
        }),
        "DIR: tensor model.extra should be in model-00001-of-00003.safetensors by \
         model.safetensors.index.json, but the header of model-00001-of-00003.safetensors lacks it"
    );
    // What is left alone anyway may be indexed or not.
    let directory = copy("tiny-sharded");
    edit(&directory.path().join(index::INDEX), |index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        map.remove("mtp.fc.weight").unwrap();
        map.insert("mtp.more".to_owned(), json!("model-00001-of-00003.safetensors"));
    });
    assert!(Checkpoint::open(directory.path()).is_ok());
}

#[test]
fn shape_type_and_strangers_are_named() {
    let damaged = |change: fn(&mut Tensors)| {
        let directory = copy("tiny-untied");
        rewrite(&directory.path().join(index::SINGLE), change);
        refusal(&directory)
    };
    assert_eq!(
        damaged(|tensors| {
            tensors.get_mut("model.layers.3.self_attn.k_proj.weight").unwrap().1 = vec![128, 32];
        }),
        "DIR: tensor model.layers.3.self_attn.k_proj.weight in model.safetensors has shape [128, 32]: \
         config.json asks for [64, 64]"
    );
    assert_eq!(
        damaged(|tensors| tensors.get_mut("model.norm.weight").unwrap().0 = Dtype::I16),
        "DIR: tensor model.norm.weight in model.safetensors is I16: expected BF16, F16 or F32"
    );
    let bias = damaged(|tensors| {
        tensors.insert(
            "model.layers.3.self_attn.q_proj.bias".to_owned(),
            (Dtype::BF16, vec![1], vec![0, 0]),
        );
        tensors.insert("stray\n".to_owned(), (Dtype::BF16, vec![1], vec![0, 0]));
    });
    assert_eq!(
        bias,
        "DIR: unexpected tensor model.layers.3.self_attn.q_proj.bias in model.safetensors: the model \
         of config.json has no place for it (and 1 more, which `pocketd inspect` lists)"
    );
    assert_eq!(
        damaged(|tensors| {
            let norm = tensors["model.norm.weight"].clone();
            tensors.insert("model.language_model.norm.weight".to_owned(), norm);
        }),
        "DIR: tensor model.norm.weight is both in model.safetensors as \
         model.language_model.norm.weight and in model.safetensors as model.norm.weight"
    );
}

#[test]
fn a_survey_lists_every_fault_of_a_damaged_directory() {
    let directory = copy("tiny-untied");
    rewrite(&directory.path().join(index::SINGLE), |tensors| {
        tensors.remove("model.norm.weight").unwrap();
        tensors.insert("stray".to_owned(), (Dtype::BF16, vec![1], vec![0, 0]));
        tensors.get_mut("lm_head.weight").unwrap().0 = Dtype::U16;
    });
    let checkpoint = Checkpoint::survey(directory.path()).unwrap();
    let coverage = checkpoint.coverage();
    assert_eq!(coverage.missing, ["model.norm.weight"]);
    assert_eq!(coverage.unexpected.len(), 1);
    assert_eq!(coverage.mapped.len(), 55);
    let kinds: Vec<Value> = coverage
        .faults
        .iter()
        .map(|fault| serde_json::to_value(fault).unwrap()["fault"].clone())
        .collect();
    assert_eq!(kinds, ["never_here", "unexpected", "type"]);
    assert!(checkpoint.tensor("lm_head.weight").is_err());
}

#[test]
fn a_truncated_file_is_named_with_its_numbers() {
    let directory = copy("tiny-untied");
    let path = directory.path().join(index::SINGLE);
    fs::File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let message = refusal(&directory);
    assert!(message.starts_with("DIR/model.safetensors: tensor "), "{message}");
    assert!(message.contains("of the data, but the file holds "), "{message}");
}
