//! A KV cache too small for all: who gives way, who waits, who is refused.

use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{
    EngineOptions, EngineStatus, FinishReason, GenerateRequest, RequestError, SamplingParams,
};

use crate::heard::{ask, ask_all, hear, metric};
use crate::random::Random;
use crate::rig::{flags, generate, greedy, options, shutdown, start, test, try_start, wait_for};

pub fn tests() -> Vec<Trial> {
    vec![
        test("the youngest gives way and says the same m14", the_youngest_gives_way),
        test("everybody gives way but the oldest, and says the same", all_but_the_oldest),
        test("answers to one prompt give way and say the same", answers_give_way),
        test("what can never fit is refused with the numbers m4", what_never_fits_is_refused),
        test("a full cache drains when half the clients leave m5", a_full_cache_drains),
        test("a large request in the queue does not stop the rest m7", large_among_small),
    ]
}

/// Room for `kv_blocks` blocks of 64 tokens.
pub fn small(kv_blocks: usize) -> EngineOptions {
    EngineOptions {
        max_model_len: 256,
        max_num_batched_tokens: 256,
        max_num_seqs: 8,
        max_queue: 64,
        kv_blocks,
        ..options("tiny-tied", 2)
    }
}

/// Nobody is there, and nothing is held: the status says so, and so do the metrics.
pub async fn assert_idle(handle: &EngineHandle) {
    let idle = |status: &EngineStatus| {
        (status.running, status.waiting, status.kv_blocks_used) == (0, 0, 0)
    };
    // What a step holds comes back with the step's end.
    wait_for("an idle engine", || handle.status(), idle).await;
    for series in ["pocket_requests_running", "pocket_requests_waiting", "pocket_kv_blocks_used"] {
        assert_eq!(metric(handle, series), 0.0, "{series}");
    }
}

/// Requests of `prompt` tokens each, chosen by seeds, with penalties.
fn crowd(count: usize, prompt: usize, tokens: usize) -> Vec<GenerateRequest> {
    let mut random = Random::new(11);
    let request = |index: usize| {
        let sampling = SamplingParams {
            seed: Some(index as u64),
            repetition_penalty: 1.2,
            frequency_penalty: 0.3,
            ..SamplingParams::default()
        };
        let prompt = random.ids(prompt, 640);
        let logprobs = Some(3);
        GenerateRequest { sampling, logprobs, ..greedy(&format!("r{index}"), &prompt, tokens) }
    };
    (0..count).map(request).collect()
}

/// How often each of `requests` has given way. What they say is what they say where nobody has to.
async fn preemptions(kv_blocks: usize, requests: Vec<GenerateRequest>) -> Vec<u64> {
    let engine = start(small(64)).await;
    let mut alone = vec![];
    for request in &requests {
        let heard = ask(&engine.handle(), request.clone()).await;
        assert_eq!(heard.timings.preemptions, 0);
        alone.push(heard.said);
    }
    shutdown(engine).await;
    let engine = start(small(kv_blocks)).await;
    let handle = engine.handle();
    let together = ask_all(&handle, requests).await;
    for (index, (heard, alone)) in together.iter().zip(alone).enumerate() {
        assert_eq!(heard.said, alone, "request {index}");
    }
    assert_idle(&handle).await;
    let preemptions: Vec<u64> = together.iter().map(|heard| heard.timings.preemptions).collect();
    let total = preemptions.iter().sum::<u64>() as f64;
    assert_eq!(metric(&handle, "pocket_preemptions_total"), total);
    shutdown(engine).await;
    preemptions
}

async fn the_youngest_gives_way() {
    // Three that grow from one block to two each, where there are five.
    assert_eq!(preemptions(5, crowd(3, 60, 60)).await, [0, 0, 1]);
}

async fn all_but_the_oldest() {
    // Five that grow to four blocks each, where there are six.
    let found = preemptions(6, crowd(5, 40, 200)).await;
    assert_eq!(found[0], 0, "{found:?}");
    assert!(found[1..].iter().all(|times| *times > 0), "{found:?}");
}

async fn answers_give_way() {
    let mut requests = crowd(3, 70, 100);
    requests[1].n = 4;
    requests[1].prompt_logprobs = Some(2);
    requests[2].prompt_logprobs = Some(0);
    // All begin: two blocks each, and one for each further answer. There is nothing left to grow into.
    let found = preemptions(9, requests).await;
    assert_eq!(found[0], 0, "{found:?}");
    assert!(found[1] > 0 && found[2] > 0, "{found:?}");
}

async fn what_never_fits_is_refused() {
    let error = try_start(small(3)).await.0.err().unwrap();
    assert!(error.is_bad_input(), "{error}");
    let said = error.to_string();
    assert!(said.contains("3 blocks") && said.contains("256 takes 4"), "{said}");

    let delayed = flags(&[("POCKET_CALL_DELAY_US", "20000")]);
    let engine = start(EngineOptions { flags: delayed, ..small(4) }).await;
    let handle = engine.handle();
    let small = handle.submit(greedy("small", &[1, 2, 3], 8)).await.unwrap();
    for (prompt, tokens, numbers) in
        [(256, 1, "the prompt has 256 tokens; the context of 256"), (200, 57, "leaves 56 after")]
    {
        let error = generate(&handle, greedy("large", &vec![1; prompt], tokens)).await.unwrap_err();
        assert!(matches!(error, RequestError::Invalid(_)), "{error}");
        assert!(error.to_string().contains(numbers), "{error}");
    }
    // The largest there can be takes the whole cache, and waits for the small one.
    let largest = handle.submit(greedy("largest", &[1; 200], 56)).await.unwrap();
    assert_eq!(hear(small).await.unwrap().ids().len(), 8);
    assert_eq!(hear(largest).await.unwrap().ids().len(), 56);
    assert_idle(&handle).await;
    shutdown(engine).await;
}

async fn a_full_cache_drains() {
    let delayed = flags(&[("POCKET_CALL_DELAY_US", "10000")]);
    let engine = start(EngineOptions { flags: delayed, ..small(8) }).await;
    let handle = engine.handle();
    // Prompts of two blocks: three of them fill the cache, for there is to be room to grow.
    let first = handle.submit_all(crowd(12, 100, 30)).await.unwrap();
    let status = handle.status().await;
    assert_eq!((status.running, status.waiting, status.kv_blocks_used), (3, 9, 6));
    let mut staying = vec![];
    for (index, stream) in first.into_iter().enumerate() {
        match index % 4 {
            0 => drop(stream),
            2 => {
                assert_eq!(handle.cancel(&format!("r{index}")).await, 1);
                let said = hear(stream).await.unwrap().said;
                assert!(said.answers.iter().all(|a| a.reason == Some(FinishReason::Cancelled)));
            }
            _ => staying.push(stream),
        }
    }
    for mut request in crowd(8, 100, 30) {
        request.id = format!("late {}", request.id);
        staying.push(handle.submit(request).await.unwrap());
    }
    assert_eq!(staying.len(), 14);
    for stream in staying {
        assert_eq!(hear(stream).await.unwrap().ids().len(), 30);
    }
    assert_idle(&handle).await;
    shutdown(engine).await;
}

async fn large_among_small() {
    let delayed = flags(&[("POCKET_CALL_DELAY_US", "10000")]);
    let engine = start(EngineOptions { flags: delayed, ..small(4) }).await;
    let handle = engine.handle();
    let first = greedy("first", &[7; 40], 30);
    let large = greedy("large", &[8; 230], 20);
    let tiny = (0..10).map(|index| greedy(&format!("tiny {index}"), &[index as u32 + 1; 5], 6));
    let requests = [first, large].into_iter().chain(tiny).collect();
    let streams = handle.submit_all(requests).await.unwrap();
    let status = handle.status().await;
    assert_eq!((status.running, status.waiting), (1, 11), "nobody overtakes the large one");
    for (stream, tokens) in streams.into_iter().zip([30, 20].into_iter().chain([6; 10])) {
        let heard = hear(stream).await.unwrap();
        assert_eq!((heard.ids().len(), heard.timings.preemptions), (tokens, 0));
    }
    assert_idle(&handle).await;
    shutdown(engine).await;
}
