//! What the tests of this module share.

use std::path::Path;
use std::sync::Arc;

use pocket_actors::api::{EngineCounters, Event, FinishReason, Timings, TokenLogprobs};
use pocket_model::stop::StopMatcher;
use pocket_model::tokenizer::Tokenizer;

use super::sampling::SamplingDefaults;

/// A tokenizer of 640 ids whose characters beyond ASCII take several tokens.
pub fn tokenizer() -> Arc<Tokenizer> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-tied");
    let read = |name| std::fs::read(directory.join(name)).unwrap();
    let config = read("tokenizer_config.json");
    Arc::new(Tokenizer::from_bytes(&read("tokenizer.json"), Some(&config), 640).unwrap())
}

/// Defaults of a checkpoint that recommends nothing.
pub const DEFAULTS: SamplingDefaults = SamplingDefaults {
    temperature: 1.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    repetition_penalty: 1.0,
};

/// What the engine says of one answer that consists of these tokens: its own decoder and stop texts, so
/// that text is held back and cut as there.
pub fn events_of(choice: usize, ids: &[u32], stops: &[String], logprobs: bool) -> Vec<Event> {
    let (mut decoder, mut stop) = (tokenizer().stream(), StopMatcher::new(stops).unwrap());
    let mut events = Vec::new();
    let mut reason = FinishReason::Length;
    for &id in ids {
        let text = stop.push(&decoder.push(id));
        let logprobs = logprobs.then(|| score(id));
        events.push(Event::Token { choice, id, text, logprobs });
        if stop.matched().is_some() {
            reason = FinishReason::Stop;
            break;
        }
    }
    let text = if stop.matched().is_some() { String::new() } else { stop.finish() };
    events.push(Event::Ended { choice, reason, text });
    events
}

/// Some log-probabilities of a token.
pub fn score(id: u32) -> TokenLogprobs {
    TokenLogprobs { logprob: -f64::from(id), rank: 1, top: vec![(id, -f64::from(id)), (0, -900.0)] }
}

/// A token that shows this text.
pub fn token(choice: usize, text: &str) -> Event {
    Event::Token { choice, id: 7, text: text.into(), logprobs: None }
}

/// The end of an answer.
pub fn ended(choice: usize, text: &str, reason: FinishReason) -> Event {
    Event::Ended { choice, reason, text: text.into() }
}

/// The end of a request with 4 prompt tokens and 3 of answers.
pub fn finished() -> Event {
    let timings = Timings { prompt_tokens: 4, completion_tokens: 3, ..Timings::default() };
    Event::Finished { timings, counters: EngineCounters::default() }
}
