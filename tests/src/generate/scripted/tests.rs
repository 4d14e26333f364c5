//! Chains, and that a checkpoint holds the chain it should: read back and followed by hand.

use half::bf16;
use pocket_model::tokenizer::Tokenizer;
use safetensors::SafeTensors;

use super::*;

/// Follows a checkpoint's greedy answer: embedding, norm, head. Layers are left out, after a look that
/// they add nothing.
fn follow(directory: &Path, prompt: u32, count: usize) -> Vec<u32> {
    let file = std::fs::read(directory.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let matrix = |name: &str| -> (usize, Vec<f32>) {
        let tensor = tensors.tensor(name).unwrap();
        let numbers = tensor.data().chunks_exact(2);
        let numbers = numbers.map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32());
        (tensor.shape()[1], numbers.collect())
    };
    let silent: Vec<_> = tensors
        .names()
        .into_iter()
        .filter(|name| {
            ["o_proj.weight", "out_proj.weight", "down_proj.weight"]
                .iter()
                .any(|s| name.ends_with(s))
        })
        .collect();
    // A mixer and an MLP a layer.
    assert_eq!(silent.len(), 8);
    assert!(silent.iter().all(|name| matrix(name).1.iter().all(|&weight| weight == 0.0)));

    let (hidden, embedding) = matrix("model.embed_tokens.weight");
    let (_, head) = matrix("lm_head.weight");
    let mut answer = Vec::new();
    let mut token = prompt;
    while answer.len() < count {
        let row = &embedding[token as usize * hidden..][..hidden];
        let scale = (row.iter().map(|x| x * x).sum::<f32>() / hidden as f32 + 1e-6).sqrt().recip();
        let logits = head
            .chunks_exact(hidden)
            .map(|weights| weights.iter().zip(row).map(|(w, x)| w * x * scale).sum::<f32>());
        let (mut best, mut id) = (f32::NEG_INFINITY, 0);
        for (logit, candidate) in logits.zip(0..) {
            if logit > best {
                (best, id) = (logit, candidate);
            }
        }
        assert!(best > 30.0, "a clear winner: {best}");
        answer.push(id);
        token = id;
    }
    answer
}

fn written(script: &Script) -> (tempfile::TempDir, ScriptedCheckpoint, Tokenizer) {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = script.write(directory.path()).unwrap();
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
    let vocab_size = config["vocab_size"].as_u64().unwrap() as usize;
    let tokenizer = Tokenizer::from_bytes(
        &read("tokenizer.json"),
        Some(&read("tokenizer_config.json")),
        vocab_size,
    );
    (directory, checkpoint, tokenizer.unwrap())
}

const TEXT: &str = "Hello, hello! 👩‍👩‍👧 中文中文 é — the the the end";

#[test]
fn a_text_is_answered_and_ends() {
    let script = Script::text(TEXT).unwrap();
    let (directory, checkpoint, tokenizer) = written(&script);
    let count = checkpoint.chain.len() + 1;
    let answer = follow(directory.path(), u32::from(b'\n'), count);
    assert_eq!(answer, checkpoint.answer(count + 5));
    assert_eq!(answer.last(), Some(&checkpoint.eos));
    assert_eq!(tokenizer.decode(&answer), TEXT);
    for cut in 0..=count {
        assert_eq!(tokenizer.decode(&answer[..cut]), checkpoint.text(cut), "{cut}");
    }
    // An emoji is spread over tokens.
    assert!(checkpoint.text(count - 1).chars().count() < checkpoint.bytes.concat().len());
    let splits = (0..count).filter(|&cut| {
        std::str::from_utf8(&checkpoint.bytes[..cut.min(count - 1)].concat()).is_err()
    });
    assert!(splits.count() > 10);
}

#[test]
fn a_loop_goes_on_for_ever() {
    let script = Script::pieces(["one ", "two ", "three "]).unwrap().then(End::LoopTo(1)).unwrap();
    let (directory, checkpoint, tokenizer) = written(&script);
    let answer = follow(directory.path(), 7, 8);
    assert_eq!(answer, checkpoint.answer(8));
    assert_eq!(tokenizer.decode(&answer), "one two three two three two three two ");
    assert_eq!(checkpoint.text(4), "one two three two ");
}

#[test]
fn a_tie_goes_to_the_lowest_id_d3() {
    let script = Script::text("tied at the start and later").unwrap();
    let script = script.tie_at(0).unwrap().tie_at(3).unwrap();
    let (directory, checkpoint, tokenizer) = written(&script);
    let count = checkpoint.chain.len();
    assert_eq!(follow(directory.path(), 10, count), checkpoint.chain);
    assert_eq!(checkpoint.rivals.len(), 2);
    assert!(checkpoint.rivals.iter().all(|rival| checkpoint.chain.iter().all(|id| id < rival)));
    assert_eq!(tokenizer.decode(&checkpoint.rivals), " <tie 0> <tie 3>");

    // The rows really are equal.
    let file = std::fs::read(directory.path().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let head = tensors.tensor("lm_head.weight").unwrap();
    let row = |id: u32| head.data().chunks_exact(2 * head.shape()[1]).nth(id as usize).unwrap();
    assert_eq!(row(checkpoint.chain[0]), row(checkpoint.rivals[0]));
    assert_eq!(row(checkpoint.chain[3]), row(checkpoint.rivals[1]));
    // After a rival the chain begins again.
    assert_eq!(follow(directory.path(), checkpoint.rivals[1], 1), checkpoint.chain[..1]);
}

#[test]
fn ids_are_answered_as_they_are() {
    let ids = [65, 300, 299, 66, 400];
    let (directory, checkpoint, tokenizer) = written(&Script::ids(&ids).unwrap());
    assert_eq!(checkpoint.chain, ids);
    assert_eq!(follow(directory.path(), 10, 6), checkpoint.answer(6));
    assert_eq!(tokenizer.decode(&ids), "A w300 w299B w400");
    assert_eq!(checkpoint.text(5), "A w300 w299B w400");
}

#[test]
fn chains_that_cannot_be_are_refused() {
    let repeated = Script::pieces(["a", "b", "a"]).unwrap_err();
    assert!(repeated.to_string().starts_with("token \"a\" is at places 0 and 2 of the chain: "));
    assert!(Script::ids(&[5, 9, 5]).unwrap_err().to_string().starts_with("token 5 is at places"));
    assert_eq!(Script::text("").unwrap_err(), ScriptError::Empty);
    assert_eq!(Script::ids(&[]).unwrap_err(), ScriptError::Empty);
    let script = Script::text("short").unwrap();
    let error = script.clone().then(End::LoopTo(2)).unwrap_err().to_string();
    assert_eq!(error, "place 2 is beyond the chain's 2 tokens");
    assert!(script.tie_at(9).is_err());
}

#[test]
fn texts_are_cut_into_different_pieces() {
    let pieces = |text: &str| -> Vec<String> {
        let pieces = cut(text.as_bytes());
        assert_eq!(pieces.concat(), text.as_bytes());
        pieces.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect()
    };
    assert_eq!(pieces("Hello"), ["He", "llo"]);
    assert_eq!(pieces("the the the "), ["th", "e ", "the", " t", "he "]);
    assert_eq!(pieces("aaaa"), ["aaaa"]);
    assert_eq!(pieces("a"), ["a"]);
    assert_eq!(cut("😀".as_bytes()).len(), 4);
    assert_eq!(cut("中a".as_bytes()), [&b"\xe4"[..], b"\xb8", b"\xada"]);
}
