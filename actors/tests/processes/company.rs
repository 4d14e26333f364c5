//! Requests beside others: batches of every size, conversations in turns, seeds, several answers.

use libtest_mimic::Trial;
use pocket_actors::api::{EngineOptions, GenerateRequest, SamplingParams};

use crate::heard::{Answer, Said, ask, ask_all};
use crate::random::Random;
use crate::rig::{crowded, greedy, layers, shutdown, start, test};

pub fn tests() -> Vec<Trial> {
    vec![
        test("a probe has the same bits in batches of 1 to 62 d2", batches_of_every_size),
        test("two conversations in turns are those run one by one d14", conversations),
        test("a seed gives the same answer in company d24", seeds_in_company),
        test("sampling fields vary within a step h21", fields_vary_within_a_step),
        test("several answers are those of their seeds", answers_have_their_seeds),
        test("several answers with few slots are those of their seeds", few_slots_many_answers),
        test("greedy answers to one prompt are equal and compute it once", the_prompt_is_shared),
    ]
}

fn vocab(random: &mut Random, tokens: usize) -> Vec<u32> {
    random.ids(tokens, 640)
}

async fn batches_of_every_size() {
    const TOKENS: usize = 12;
    let engine = start(EngineOptions { max_num_seqs: 62, ..crowded("tiny-tied", 2) }).await;
    let handle = engine.handle();
    let mut random = Random::new(2);
    let prompt = vocab(&mut random, 70);
    let probe = GenerateRequest { logprobs: Some(20), ..greedy("probe", &prompt, TOKENS) };
    let mut alone: Option<Said> = None;
    for size in [1, 2, 3, 7, 17, 60, 61, 62] {
        let mut batch: Vec<GenerateRequest> = (1..size)
            .map(|other| {
                let tokens = random.within(1..=90);
                let prompt = vocab(&mut random, tokens);
                GenerateRequest {
                    logprobs: (other % 2 == 0).then_some(1),
                    ..greedy(&format!("other {other}"), &prompt, TOKENS)
                }
            })
            .collect();
        let place = random.below(size);
        batch.insert(place, probe.clone());
        let before = handle.status().await.forward_passes;
        let heard = ask_all(&handle, batch).await.swap_remove(place);
        let calls = handle.status().await.forward_passes - before;
        assert_eq!(calls, TOKENS as u64, "every call carried all {size}");
        assert_eq!(heard.said, *alone.get_or_insert(heard.said.clone()), "a batch of {size}");
    }
    shutdown(engine).await;
}

/// A conversation whose every turn is prompted with all that was said before.
struct Conversation {
    name: &'static str,
    random: Random,
    so_far: Vec<u32>,
    answers: Vec<Said>,
}

impl Conversation {
    fn new(name: &'static str, seed: u64) -> Self {
        Self { name, random: Random::new(seed), so_far: vec![], answers: vec![] }
    }

    fn ask(&mut self) -> GenerateRequest {
        let words = self.random.within(1..=12);
        self.so_far.extend(vocab(&mut self.random, words));
        let tokens = self.random.within(1..=12);
        let id = format!("{} {}", self.name, self.answers.len());
        GenerateRequest { logprobs: Some(5), ..greedy(&id, &self.so_far, tokens) }
    }

    fn hear(&mut self, said: Said) {
        self.so_far.extend(&said.answers[0].ids);
        self.answers.push(said);
    }
}

async fn conversations() {
    const TURNS: usize = 20;
    let seeds = [("ships", 3), ("bread", 4)];
    let engine = start(EngineOptions { max_num_batched_tokens: 128, ..crowded("tiny-tied", 2) });
    let engine = engine.await;
    let handle = engine.handle();
    let mut by_themselves = seeds.map(|(name, seed)| Conversation::new(name, seed));
    for conversation in &mut by_themselves {
        for _ in 0..TURNS {
            let request = conversation.ask();
            conversation.hear(ask(&handle, request).await.said);
        }
    }
    let mut in_turns = seeds.map(|(name, seed)| Conversation::new(name, seed));
    for _ in 0..TURNS {
        let requests = in_turns.iter_mut().map(Conversation::ask).collect();
        for (conversation, heard) in in_turns.iter_mut().zip(ask_all(&handle, requests).await) {
            conversation.hear(heard.said);
        }
    }
    for (alone, together) in by_themselves.iter().zip(&in_turns) {
        assert!(alone.so_far.len() > 128, "{}: prompts have to span pieces", alone.name);
        assert_eq!(together.answers, alone.answers, "{}", alone.name);
    }
    shutdown(engine).await;
}

fn seeded(id: &str, prompt: &[u32], seed: u64) -> GenerateRequest {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    GenerateRequest { sampling, logprobs: Some(3), ..greedy(id, prompt, 12) }
}

async fn seeds_in_company() {
    let engine = start(crowded("tiny-tied", 2)).await;
    let handle = engine.handle();
    let mut random = Random::new(5);
    let requests: Vec<GenerateRequest> = (0..40)
        .map(|index| {
            let tokens = random.within(1..=100);
            seeded(&format!("r{index}"), &vocab(&mut random, tokens), index)
        })
        .collect();
    let together = ask_all(&handle, requests.clone()).await;
    for (request, heard) in requests.into_iter().zip(together) {
        let id = request.id.clone();
        assert_eq!(ask(&handle, request).await.said, heard.said, "{id}");
    }
    shutdown(engine).await;
}

/// One request for each way of choosing tokens.
fn varied() -> Vec<GenerateRequest> {
    let set: [fn(&mut GenerateRequest); 12] = [
        |_| {},
        |request| request.logprobs = Some(0),
        |request| request.logprobs = Some(20),
        |request| request.prompt_logprobs = Some(0),
        |request| request.prompt_logprobs = Some(2),
        |request| request.sampling.temperature = 1.0,
        |request| (request.sampling.temperature, request.sampling.top_k) = (1.5, 7),
        |request| (request.sampling.temperature, request.sampling.top_p) = (0.7, 0.5),
        |request| (request.sampling.temperature, request.sampling.min_p) = (2.0, 0.1),
        |request| request.sampling.repetition_penalty = 1.4,
        |request| {
            request.sampling.presence_penalty = 0.5;
            request.sampling.frequency_penalty = 1.0;
        },
        |request| {
            request.ignore_eos = false;
            request.sampling.min_tokens = 4;
            request.sampling.logit_bias = [(634, 90.0), (7, -100.0)].into();
        },
    ];
    let mut random = Random::new(6);
    let request = |(index, set): (usize, fn(&mut GenerateRequest))| {
        let prompt = vocab(&mut random, 3 + 9 * index);
        let mut request = greedy(&format!("r{index}"), &prompt, 10);
        request.sampling.seed = Some(index as u64);
        set(&mut request);
        request
    };
    set.into_iter().enumerate().map(request).collect()
}

async fn fields_vary_within_a_step() {
    let engine = start(crowded("tiny-tied", 2)).await;
    let handle = engine.handle();
    let mut alone = vec![];
    for request in varied() {
        alone.push(ask(&handle, request).await.said);
    }
    let biased = &alone.last().unwrap().answers[0];
    assert_eq!((biased.ids.len(), biased.ids[4]), (5, 634), "the end comes when it may");
    let together = ask_all(&handle, varied()).await;
    // One after the embedding and two a layer, whatever is asked for.
    let each = 2 * layers("tiny-tied") + 1;
    for (index, (heard, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(heard.said, *alone, "request {index}");
        let [first, second] = &heard.counters.ranks[..] else { panic!() };
        assert_eq!(first.run, each * heard.counters.forward_passes, "request {index}");
        assert_eq!((first.run, first.bytes), (second.run, second.bytes), "request {index}");
    }
    shutdown(engine).await;
}

/// What each of `count` seeds answers by itself, and then all of them as answers to one request.
async fn assert_answers_have_their_seeds(options: EngineOptions) {
    const SEED: u64 = 40;
    let engine = start(options).await;
    let handle = engine.handle();
    let prompt = vocab(&mut Random::new(7), 130);
    let mut alone: Vec<Answer> = vec![];
    for answer in 0..5 {
        let heard = ask(&handle, seeded("one", &prompt, SEED + answer)).await;
        alone.extend(heard.said.answers);
    }
    assert_ne!(alone[0].ids, alone[1].ids);
    let several = GenerateRequest { n: 5, ..seeded("several", &prompt, SEED) };
    assert_eq!(ask(&handle, several.clone()).await.said.answers, alone);
    // Beside another.
    let other = GenerateRequest { n: 3, ..seeded("other", &prompt[..65], 1) };
    let heard = ask_all(&handle, vec![other, several]).await;
    assert_eq!(heard[1].said.answers, alone);
    assert_eq!(heard[0].said.answers.len(), 3);
    shutdown(engine).await;
}

async fn answers_have_their_seeds() {
    assert_answers_have_their_seeds(crowded("tiny-tied", 2)).await;
}

async fn few_slots_many_answers() {
    for max_num_seqs in [1, 2] {
        let options = EngineOptions { max_num_seqs, ..crowded("tiny-tied", 2) };
        assert_answers_have_their_seeds(options).await;
    }
}

async fn the_prompt_is_shared() {
    /// Layers of tiny-tied with keys and values.
    const FULL: u64 = 2;
    const PROMPT: u64 = 130;
    const TOKENS: u64 = 3;
    let engine = start(crowded("tiny-tied", 2)).await;
    let handle = engine.handle();
    let prompt = vocab(&mut Random::new(8), PROMPT as usize);
    for n in [1, 4] {
        let request = GenerateRequest { n, ..greedy("a", &prompt, TOKENS as usize) };
        let heard = ask(&handle, request).await;
        assert_eq!(heard.said.answers.len(), n);
        assert!(heard.said.answers.iter().all(|answer| *answer == heard.said.answers[0]));
        assert_eq!((heard.timings.prefill_calls, heard.counters.forward_passes), (1, TOKENS));
        assert_eq!(heard.timings.prompt_tokens, PROMPT);
        assert_eq!(heard.timings.completion_tokens, n as u64 * TOKENS);
        // A row at position p sees p + 1 keys. The last token is not computed.
        let of_prompt = PROMPT * (PROMPT + 1) / 2;
        let of_answer: u64 = (PROMPT..PROMPT + TOKENS - 1).map(|position| position + 1).sum();
        let pairs = FULL * (of_prompt + n as u64 * of_answer);
        assert_eq!(heard.counters.work.query_key_pairs, pairs, "{n} answers");
    }
    shutdown(engine).await;
}
