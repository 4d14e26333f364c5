//! A checkpoint with a token whose embedding is not a number: requests that hold it fail, and what they
//! leave behind reaches nobody else.

use std::path::Path;

use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{
    EngineOptions, GenerateRequest, ModelSource, RequestError, SamplingParams,
};
use safetensors::SafeTensors;

use crate::heard::{Said, ask, hear, metric};
use crate::memory::assert_idle;
use crate::random::Random;
use crate::rig::{fixture, greedy, options, shutdown, start, test};

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![];
    for world in [1, 2] {
        let name = format!("a failed request reaches nobody else h19 d21: {world}");
        tests.push(test(name, move || poison_stays_where_it_is(world)));
    }
    tests
}

const FIXTURE: &str = "tiny-untied";
/// The token nobody should use.
const POISON: u32 = 5;

/// A copy of the fixture with a row of NaN in its embedding. Its head has weights of its own, so that
/// logits are numbers for everybody else.
fn poison(directory: &Path) {
    let original = fixture(FIXTURE);
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    {
        std::fs::copy(original.join(name), directory.join(name)).unwrap();
    }
    let mut bytes = std::fs::read(original.join("model.safetensors")).unwrap();
    let row = {
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let embedding = file.tensor("model.embed_tokens.weight").unwrap();
        let row = 2 * embedding.shape()[1];
        let offset = embedding.data().as_ptr() as usize - bytes.as_ptr() as usize;
        let start = offset + POISON as usize * row;
        start..start + row
    };
    for number in bytes[row].chunks_exact_mut(2) {
        // NaN as bfloat16.
        number.copy_from_slice(&0x7fc0_u16.to_le_bytes());
    }
    std::fs::write(directory.join("model.safetensors"), bytes).unwrap();
}

/// Prompts without the token, and what to do with them.
fn healthy(count: usize, what: &str) -> Vec<GenerateRequest> {
    let mut random = Random::new(21);
    let request = |index: usize| {
        let tokens = random.within(1..=100);
        let mut prompt = random.ids(tokens, 640);
        prompt.iter_mut().filter(|id| **id == POISON).for_each(|id| *id += 1);
        GenerateRequest {
            logprobs: Some(5),
            ..without(greedy(&format!("{what} {index}"), &prompt, 8))
        }
    };
    (0..count).map(request).collect()
}

/// Keeps the model from choosing the token.
fn without(mut request: GenerateRequest) -> GenerateRequest {
    request.sampling.logit_bias = [(POISON, -100.0)].into();
    request
}

/// Requests whose logits are not numbers from some row of the prompt on.
fn poisoned(round: usize) -> Vec<GenerateRequest> {
    let prompts = [vec![POISON], vec![1; 70], vec![2; 130], vec![3; 9], vec![4; 66]];
    let mut requests = vec![];
    for (index, mut prompt) in prompts.into_iter().enumerate() {
        let middle = prompt.len() / 2;
        prompt[middle] = POISON;
        let request = greedy(&format!("bad {round} {index}"), &prompt, 8);
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
        requests.push(match index {
            // These two by what each rank says of its part of a row alone.
            0 => request,
            1 => GenerateRequest { prompt_logprobs: Some(0), ..request },
            2 => GenerateRequest { sampling, n: 2, ..request },
            3 => GenerateRequest { prompt_logprobs: Some(1), sampling, ..request },
            _ => GenerateRequest { logprobs: Some(1), ..request },
        });
    }
    requests
}

async fn alone(handle: &EngineHandle) -> Vec<Said> {
    let mut all = vec![];
    for request in healthy(12, "alone") {
        all.push(ask(handle, request).await.said);
    }
    all
}

async fn poison_stays_where_it_is(world: usize) {
    let directory = tempfile::tempdir().unwrap();
    poison(directory.path());
    // So little memory that everybody after has slots and blocks of one that failed.
    let options = EngineOptions {
        model: ModelSource::Directory(directory.path().to_path_buf()),
        max_model_len: 256,
        max_num_seqs: 6,
        kv_blocks: 12,
        max_queue: 64,
        ..options(FIXTURE, world)
    };
    let engine = start(options).await;
    let handle = engine.handle();
    let before = alone(&handle).await;
    let failed = "pocket_requests_total{outcome=\"failed\"}";
    let mut failures = 0;
    for round in 0..4 {
        let mut requests = healthy(before.len(), "beside");
        let count = requests.len();
        for (index, bad) in poisoned(round).into_iter().enumerate() {
            requests.insert(3 * index, bad);
            failures += 1;
        }
        let mut said = vec![];
        for (request, stream) in
            requests.iter().zip(handle.submit_all(requests.clone()).await.unwrap())
        {
            match hear(stream).await {
                Ok(heard) => said.push(heard.said),
                Err(error) => {
                    assert!(matches!(error, RequestError::RankFailed(_)), "{error}");
                    let begins = format!("request {:?} cannot go on: ", request.id);
                    assert!(error.to_string().starts_with(&begins), "{error}");
                    assert!(request.id.starts_with("bad"), "{error}");
                }
            }
        }
        assert_eq!(said.len(), count);
        assert!(said == before, "round {round}: those beside failed ones say something else");
        assert_idle(&handle).await;
        assert_eq!(metric(&handle, failed), f64::from(failures));
    }
    assert_eq!(alone(&handle).await, before);
    assert_idle(&handle).await;
    shutdown(engine).await;
}
