//! Right answers at any number of ranks, the same bits in any pieces, and experiments that show.

use libtest_mimic::Trial;
use pocket_actors::api::{EngineOptions, FinishReason, GenerateRequest, SamplingParams, Score};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::rig::{
    fixture, flags, generate, greedy, layers, options, score, shutdown, start, test, try_start,
};

const FIXTURES: [&str; 3] = ["tiny-tied", "tiny-untied", "tiny-sharded"];

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![];
    for name in FIXTURES {
        for world in [1, 2, 4] {
            tests.push(test(
                format!("{name} is answered as expected by {world} ranks"),
                move || is_answered_as_expected(name, world),
            ));
        }
    }
    tests.extend([
        test("scores have the same bits in one piece and in chunks", same_bits_in_chunks),
        test("the same seed gives the same text", same_seed_same_text),
        test("sampling parameters do not reach the collectives h21", sampling_varies),
        test("skipped all-reduces are counted and change the answer", skipping_shows),
        test("one rank has nothing to skip", one_rank_skips_nothing),
        test("a stop text and an end token end an answer", ends_of_answers),
        test("what cannot be done is refused with the numbers", refusals),
        test("loading is reported to its end", loading_is_reported),
    ]);
    tests
}

struct Case {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    logprobs: Vec<f32>,
    last_logits: Vec<f32>,
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data().to_vec();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn cases(name: &str) -> Vec<Case> {
    let directory = fixture(name);
    let text = std::fs::read_to_string(directory.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(directory.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let cases = expected["cases"].as_array().unwrap().iter().enumerate();
    cases
        .map(|(index, case)| Case {
            ids: numbers(&case["ids"]),
            greedy: numbers(&case["greedy"]),
            logprobs: floats(&file, &format!("prompt_logprobs.{index}")),
            last_logits: floats(&file, &format!("logits_last.{index}")),
        })
        .collect()
}

fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = (found - expected).abs();
        assert!(
            distance <= tolerance,
            "{what}[{index}]: {found}, expected {expected} ± {tolerance}"
        );
    }
}

async fn is_answered_as_expected(name: &'static str, world: usize) {
    let engine = start(options(name, world)).await;
    let handle = engine.handle();
    // One after the embedding and two a layer.
    let reduces = if world == 1 { 0 } else { 2 * layers(name) + 1 };
    for (index, case) in cases(name).iter().enumerate() {
        let answer = generate(&handle, greedy("a", &case.ids, case.greedy.len())).await.unwrap();
        assert_eq!(answer.ids, case.greedy, "case {index}");
        assert_eq!(answer.reason, FinishReason::Length);
        assert_eq!(answer.counters.forward_passes, case.greedy.len() as u64);
        assert_eq!(answer.counters.ranks.len(), world);
        for rank in &answer.counters.ranks {
            assert_eq!((rank.run, rank.skipped), (reduces * answer.counters.forward_passes, 0));
        }

        let score = score(&handle, &case.ids, None).await;
        assert_eq!(score.logprobs[0], None);
        let found: Vec<f32> = score.logprobs[1..].iter().map(|p| p.unwrap() as f32).collect();
        assert_close("log-probability", &found, &case.logprobs, 2e-3);
        assert_close("last logits", &score.last_logits.unwrap(), &case.last_logits, 5e-3);
    }
    let status = handle.status().await;
    assert_eq!((status.running, status.waiting), (0, 0));
    assert!(status.ranks.iter().all(|rank| rank.state == "ready" && rank.loaded == 1.0));
    shutdown(engine).await;
}

fn long_text() -> Vec<u32> {
    (0..333).map(|n| (n * 7919 + 13) % 640).collect()
}

async fn same_bits_in_chunks() {
    let engine = start(options("tiny-tied", 2)).await;
    let handle = engine.handle();
    let whole = score(&handle, &long_text(), None).await;
    assert_eq!(whole.counters.forward_passes, 1);
    for (chunk, passes) in [(64, 6), (128, 3)] {
        let pieces = score(&handle, &long_text(), Some(chunk)).await;
        assert_eq!(pieces.counters.forward_passes, passes);
        let bits = |score: &Score| -> Vec<Option<u64>> {
            score.logprobs.iter().map(|p| p.map(f64::to_bits)).collect()
        };
        assert_eq!(bits(&pieces), bits(&whole), "chunk {chunk}");
        let bits = |row: &Option<Vec<f32>>| -> Vec<u32> {
            row.as_ref().unwrap().iter().map(|logit| logit.to_bits()).collect()
        };
        assert_eq!(bits(&pieces.last_logits), bits(&whole.last_logits), "chunk {chunk}");
    }
    shutdown(engine).await;
}

fn sampled(seed: u64) -> GenerateRequest {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    GenerateRequest { sampling, ..greedy("a", &[51, 71, 68], 20) }
}

async fn same_seed_same_text() {
    let mut answers = vec![];
    for _ in 0..2 {
        let engine = start(options("tiny-tied", 4)).await;
        let handle = engine.handle();
        let first = generate(&handle, sampled(1)).await.unwrap();
        assert_ne!(generate(&handle, sampled(2)).await.unwrap().ids, first.ids);
        assert_eq!(generate(&handle, sampled(1)).await.unwrap().ids, first.ids);
        answers.push(first.ids);
        shutdown(engine).await;
    }
    assert_eq!(answers[0], answers[1]);
}

async fn sampling_varies() {
    let engine = start(options("tiny-untied", 2)).await;
    let handle = engine.handle();
    for (temperature, top_p, top_k) in
        [(0.0, 1.0, 0), (1.0, 0.5, 0), (0.3, 1.0, 5), (2.0, 0.9, 1), (1.0, 1.0, 0)]
    {
        let seed = Some(3);
        let sampling =
            SamplingParams { temperature, top_p, top_k, seed, ..SamplingParams::default() };
        let request = GenerateRequest { sampling, ..greedy("a", &[9, 8, 7], 6) };
        let answer = generate(&handle, request).await.unwrap();
        assert_eq!(answer.ids.len(), 6);
        let [first, second] = &answer.counters.ranks[..] else { panic!() };
        assert_eq!((first.run, first.bytes), (second.run, second.bytes));
    }
    shutdown(engine).await;
}

async fn skipping_shows() {
    let right = &cases("tiny-tied")[0];
    let skip = flags(&[("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1")]);
    let engine = start(EngineOptions { flags: skip, ..options("tiny-tied", 4) }).await;
    let handle = engine.handle();
    let answer = generate(&handle, greedy("a", &right.ids, right.greedy.len())).await.unwrap();
    assert_ne!(answer.ids, right.greedy);
    for rank in &answer.counters.ranks {
        assert_eq!(rank.run, 0);
        assert_eq!(rank.skipped, (2 * layers("tiny-tied") + 1) * answer.counters.forward_passes);
    }
    let status = handle.status().await;
    assert!(status.outputs_wrong.unwrap().contains("ALLREDUCE_SKIP"));
    shutdown(engine).await;
}

async fn one_rank_skips_nothing() {
    let right = &cases("tiny-tied")[0];
    let skip = flags(&[("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1")]);
    let engine = start(EngineOptions { flags: skip, ..options("tiny-tied", 1) }).await;
    let handle = engine.handle();
    let answer = generate(&handle, greedy("a", &right.ids, right.greedy.len())).await.unwrap();
    assert_eq!(answer.ids, right.greedy);
    assert_eq!((answer.counters.ranks[0].run, answer.counters.ranks[0].skipped), (0, 0));
    let status = handle.status().await;
    assert_eq!(status.outputs_wrong, None);
    assert!(status.notes[0].contains("nothing to act on"), "{:?}", status.notes);
    shutdown(engine).await;
}

async fn ends_of_answers() {
    let engine = start(options("tiny-tied", 2)).await;
    let handle = engine.handle();
    let case = &cases("tiny-tied")[0];
    let whole = generate(&handle, greedy("a", &case.ids, 24)).await.unwrap();
    // Any two characters from the middle of the text.
    let (at, _) = whole.text.char_indices().nth(whole.text.chars().count() / 2).unwrap();
    let stop: String = whole.text[at..].chars().take(2).collect();
    let at = whole.text.find(&stop).unwrap();
    let request = GenerateRequest { stop: vec![stop], ..greedy("a", &case.ids, 24) };
    let answer = generate(&handle, request).await.unwrap();
    assert_eq!((answer.text.as_str(), answer.reason), (&whole.text[..at], FinishReason::Stop));
    assert!(answer.ids.len() < whole.ids.len(), "generation ends at the stop");
    assert_eq!(answer.timings.completion_tokens, answer.ids.len() as u64);
    shutdown(engine).await;
}

async fn refusals() {
    for world in [0, 3, 32] {
        let message = format!("tensor-parallel size {world}");
        let error = try_start(options("tiny-tied", world)).await.0.err().unwrap();
        assert!(error.is_bad_input() && error.to_string().contains(&message), "{error}");
    }
    let error = try_start(options("absent", 1)).await.0.err().unwrap();
    assert!(error.is_bad_input() && error.to_string().contains("no such directory"), "{error}");
    let mut odd = options("tiny-tied", 1);
    odd.max_num_batched_tokens = 100;
    let error = try_start(odd).await.0.err().unwrap();
    assert!(error.is_bad_input() && error.to_string().contains("multiple of 64"), "{error}");

    let engine = start(options("tiny-tied", 1)).await;
    let handle = engine.handle();
    let refused = |request| {
        let handle = handle.clone();
        async move { handle.submit(request).await.err().unwrap().to_string() }
    };
    assert!(refused(greedy("a", &[], 1)).await.contains("the prompt is empty"));
    assert!(refused(greedy("a", &[1, 640], 1)).await.contains("token id 640 at position 1"));
    assert!(refused(greedy("a", &[1; 512], 1)).await.contains("the prompt has 512 tokens"));
    assert!(refused(greedy("a", &[1; 500], 13)).await.contains("leaves 12"));
    shutdown(engine).await;
}

async fn loading_is_reported() {
    let (engine, loads) = try_start(options("tiny-sharded", 2)).await;
    for rank in 0..2 {
        let of: Vec<_> = loads.iter().filter(|load| load.rank == rank).collect();
        assert!(of.is_sorted_by_key(|load| load.loaded));
        let last = of.last().unwrap();
        assert_eq!(last.loaded, last.total);
    }
    shutdown(engine.unwrap()).await;
}
