//! The same request has the same bits whatever else runs and however its prompt is cut.
//!
//! Compared are the tokens of an answer, the log-probability of each with 20 alternatives, the
//! log-probability of every token of the prompt, and the last row's logits.

use futures_util::future::join_all;
use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineOptions, GenerateRequest, ModelSource, ScoreRequest};
use pocket_device::KvDtype;
use serde_json::Value;

use crate::heard::{Heard, Said, ask, ask_all, score_bits};
use crate::random::Random;
use crate::rig::{crowded, fixture, flags, greedy, shutdown, start, test};

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![];
    for world in [1, 2, 4] {
        for model in [Model::Tiny, Model::Demo] {
            let name =
                format!("64 prompts have the bits they have alone d1 d15: {model:?}, {world}");
            tests.push(test(name, move || same_bits_in_company(model, world)));
        }
    }
    tests.push(test("keys and values of 16 bits are the same alone and together", sixteen_bits));
    tests
}

#[derive(Clone, Copy, Debug)]
enum Model {
    Tiny,
    Demo,
}

/// Prompts, and the greedy answers that are known of the first ones.
struct Cases {
    prompts: Vec<Vec<u32>>,
    known: Vec<Vec<u32>>,
}

impl Model {
    fn options(self, world: usize) -> EngineOptions {
        let options = crowded("tiny-tied", world);
        match self {
            Self::Tiny => options,
            Self::Demo => EngineOptions { model: ModelSource::Demo, ..options },
        }
    }

    fn vocab_size(self) -> usize {
        match self {
            Self::Tiny => 640,
            Self::Demo => 1024,
        }
    }

    /// The fixtures' cases, then texts of all lengths, those about the edges of a piece among them.
    fn cases(self) -> Cases {
        let name = match self {
            Self::Tiny => "tiny-tied",
            Self::Demo => "demo",
        };
        let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let of = |key: &str| -> Vec<Vec<u32>> {
            let numbers = |case: &Value| serde_json::from_value(case[key].clone()).unwrap();
            expected["cases"].as_array().unwrap().iter().map(numbers).collect()
        };
        let (mut prompts, known) = (of("ids"), of("greedy"));
        let mut random = Random::new(1);
        let edges = [1, 2, 63, 64, 65, 127, 128, 129, 192, 255, 257, 384, 400];
        prompts.extend(edges.map(|tokens| random.ids(tokens, self.vocab_size())));
        while prompts.len() < PROMPTS {
            let tokens = random.within(1..=60);
            prompts.push(random.ids(tokens, self.vocab_size()));
        }
        Cases { prompts, known }
    }
}

const PROMPTS: usize = 64;

/// Known answers are compared as far as this.
const KNOWN_TOKENS: usize = 24;

fn requests(cases: &Cases) -> Vec<GenerateRequest> {
    let request = |(index, prompt): (usize, &Vec<u32>)| {
        let tokens = cases.known.get(index).map_or(5, |known| known.len().min(KNOWN_TOKENS));
        GenerateRequest { logprobs: Some(20), ..greedy(&format!("r{index}"), prompt, tokens) }
    };
    cases.prompts.iter().enumerate().map(request).collect()
}

/// Some of the same without log-probabilities: their tokens are chosen from the ranks' maxima.
fn plain(requests: &[GenerateRequest]) -> Vec<GenerateRequest> {
    let plain = |request: &GenerateRequest| GenerateRequest {
        id: format!("plain {}", request.id),
        logprobs: None,
        ..request.clone()
    };
    requests.iter().step_by(PLAIN_STEP).map(plain).collect()
}

const PLAIN_STEP: usize = 4;

type ScoreBits = (Vec<Option<u64>>, Vec<u32>);

/// What every prompt says by itself.
struct Alone {
    said: Vec<Said>,
    scores: Vec<ScoreBits>,
}

async fn score(handle: &EngineHandle, index: usize, ids: &[u32]) -> ScoreBits {
    let (id, ids) = (format!("s{index}"), ids.to_vec());
    let request = ScoreRequest { id, ids, chunk: None, last_logits: true };
    score_bits(&handle.score(request).await.unwrap())
}

async fn alone(handle: &EngineHandle, cases: &Cases) -> Alone {
    let mut alone = Alone { said: vec![], scores: vec![] };
    for request in requests(cases) {
        alone.said.push(ask(handle, request).await.said);
    }
    for (index, prompt) in cases.prompts.iter().enumerate() {
        alone.scores.push(score(handle, index, prompt).await);
    }
    alone
}

/// Answers given all at once are those that each prompt has by itself.
async fn assert_same_answers(handle: &EngineHandle, cases: &Cases, alone: &Alone, how: &str) {
    let requests = requests(cases);
    let (plain, count) = (plain(&requests), requests.len());
    let before = handle.status().await.forward_passes;
    let heard: Vec<Heard> = ask_all(handle, [requests, plain].concat()).await;
    let calls = handle.status().await.forward_passes - before;
    let all: usize = alone.said.iter().map(|said| said.answers[0].ids.len()).sum();
    assert!(calls < all as u64, "they have run together: {calls} calls for {all} tokens");
    for (index, expected) in alone.said.iter().enumerate() {
        assert_eq!(heard[index].said, *expected, "{how}, prompt {index}");
    }
    for (heard, expected) in heard[count..].iter().zip(alone.said.iter().step_by(PLAIN_STEP)) {
        assert_eq!(heard.ids(), expected.answers[0].ids, "{how}");
    }
}

/// The same of scores.
async fn assert_same_scores(handle: &EngineHandle, cases: &Cases, alone: &Alone, how: &str) {
    let scores = cases.prompts.iter().enumerate().map(|(index, ids)| score(handle, index, ids));
    for (index, found) in join_all(scores).await.into_iter().enumerate() {
        assert_eq!(found, alone.scores[index], "{how}, score {index}");
    }
}

async fn same_bits_in_company(model: Model, world: usize) {
    let cases = model.cases();
    assert_eq!(cases.prompts.len(), PROMPTS);
    let engine = start(model.options(world)).await;
    let alone = alone(&engine.handle(), &cases).await;
    for (index, known) in cases.known.iter().enumerate() {
        let found = &alone.said[index].answers[0];
        let compared = known.len().min(KNOWN_TOKENS);
        assert_eq!(found.ids, known[..compared], "case {index}");
        assert!(found.logprobs.iter().all(|bits| bits.as_ref().is_some_and(|b| b.2.len() == 20)));
    }
    shutdown(engine).await;
    for budget in [64, 256, 4096] {
        for merge in ["1", "0"] {
            let options = EngineOptions {
                max_num_batched_tokens: budget,
                flags: flags(&[("POCKET_PREFILL_MERGE", merge)]),
                ..model.options(world)
            };
            let engine = start(options).await;
            let (handle, how) = (engine.handle(), format!("budget {budget}, merge {merge}"));
            assert_same_answers(&handle, &cases, &alone, &how).await;
            if merge == "1" {
                assert_same_scores(&handle, &cases, &alone, &how).await;
            }
            shutdown(engine).await;
        }
    }
}

async fn sixteen_bits() {
    let options = |kv_dtype, budget| EngineOptions {
        kv_dtype,
        max_num_batched_tokens: budget,
        ..Model::Tiny.options(2)
    };
    let cases = Model::Tiny.cases();
    let engine = start(options(KvDtype::Bf16, 4096)).await;
    let by_itself = alone(&engine.handle(), &cases).await;
    assert_same_answers(&engine.handle(), &cases, &by_itself, "budget 4096").await;
    shutdown(engine).await;
    let engine = start(options(KvDtype::Bf16, 64)).await;
    assert_same_answers(&engine.handle(), &cases, &by_itself, "budget 64").await;
    assert_same_scores(&engine.handle(), &cases, &by_itself, "budget 64").await;
    shutdown(engine).await;
    let engine = start(options(KvDtype::Float32, 4096)).await;
    let of_32_bits = score(&engine.handle(), 0, &cases.prompts[3]).await;
    assert_ne!(of_32_bits, by_itself.scores[3], "the option does something");
    shutdown(engine).await;
}
