//! Prompts offered to an own server at once, and when each had its first token.
//!
//! They go in one request, so that they arrive together: the engine then decides which calls carry
//! them, not the order in which connections are accepted.

use std::time::Instant;

use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ArmError;
use super::server::{OwnServer, QUIET};

/// Most prompts of one request to a server.
pub const MOST_PROMPTS: usize = 128;

const COMPLETIONS: &str = "/v1/completions";

/// Where a prompt's time went, as the engine measures it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineTimes {
    /// From arrival to the first forward call, milliseconds.
    pub queue_ms: f64,
    /// From the first forward call to the first token, milliseconds.
    pub prefill_ms: f64,
    /// From the first token to the last, milliseconds.
    pub decode_ms: f64,
    /// Forward calls that carried the prompt.
    pub prefill_calls: u64,
    /// Forward calls the engine ran between arrival and first token, whoever they were for.
    pub calls_before_first_token: u64,
    /// Rows of those calls.
    pub rows_before_first_token: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those of them whose state was there already.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Times it gave its memory up and was computed again.
    pub preemptions: u64,
}

impl EngineTimes {
    /// From arrival to first token, milliseconds.
    pub fn ttft_ms(&self) -> f64 {
        self.queue_ms + self.prefill_ms
    }

    /// Of a token after the first, milliseconds; none with fewer than two.
    pub fn tpot_ms(&self) -> Option<f64> {
        let later = self.completion_tokens.checked_sub(1).filter(|later| *later > 0)?;
        Some(self.decode_ms / later as f64)
    }
}

/// One prompt of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// From the offer to the first thing heard of its answer, milliseconds, as its client has it. Where
    /// one token is asked for that is the first token.
    pub ttft_ms: f64,
    /// What the engine says of it.
    pub engine: EngineTimes,
}

/// What came of a wave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wave {
    /// From the offer to the last first token, milliseconds.
    pub wave_ms: f64,
    /// Mean time to first token, milliseconds.
    pub mean_ttft_ms: f64,
    /// From the offer to the end of everything, milliseconds.
    pub total_ms: f64,
    /// In the order of the offer.
    pub prompts: Vec<Prompt>,
}

impl Wave {
    /// Forward calls until the last first token.
    pub fn calls(&self) -> u64 {
        let before = self.prompts.iter().map(|prompt| prompt.engine.calls_before_first_token);
        before.max().unwrap_or_default()
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.engine.prompt_tokens).sum()
    }

    /// Tokens whose state was there before.
    pub fn cached_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.engine.cached_tokens).sum()
    }

    fn of(first_ms: &[Option<f64>], total_ms: f64, engine: &[EngineTimes]) -> Option<Self> {
        let first_ms: Vec<f64> = first_ms.iter().copied().collect::<Option<_>>()?;
        if engine.len() != first_ms.len() {
            return None;
        }
        let prompt =
            |(ttft_ms, engine): (&f64, &EngineTimes)| Prompt { ttft_ms: *ttft_ms, engine: *engine };
        Some(Self {
            wave_ms: first_ms.iter().copied().fold(0.0, f64::max),
            mean_ttft_ms: first_ms.iter().sum::<f64>() / first_ms.len().max(1) as f64,
            total_ms,
            prompts: first_ms.iter().zip(engine).map(prompt).collect(),
        })
    }
}

impl OwnServer {
    /// Offers prompts of token ids at once, for so many tokens each, and waits for all of it.
    pub async fn offer(&mut self, prompts: &[Vec<u32>], tokens: usize) -> Result<Wave, ArmError> {
        let body = json!({
            "prompt": prompts,
            "max_tokens": tokens,
            "ignore_eos": true,
            "temperature": 0,
            "stream": true,
        });
        let began = Instant::now();
        let reply = self.post(COMPLETIONS, &body).await?;
        let mut events = reply.bytes_stream().eventsource();
        let ms = || began.elapsed().as_secs_f64() * 1e3;
        let mut first_ms = vec![None; prompts.len()];
        let mut engine = Vec::new();
        loop {
            let event = match tokio::time::timeout(QUIET, events.next()).await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => {
                    self.alive().await?;
                    continue;
                }
            };
            let at = ms();
            let data = match event {
                Ok(event) => event.data,
                Err(error) => return Err(self.cut(&error.to_string()).await),
            };
            let Ok(chunk) = serde_json::from_str::<Value>(&data) else { continue };
            if let Some(error) = chunk.get("error") {
                return Err(self.cut(&error.to_string()).await);
            }
            for choice in chunk["choices"].as_array().into_iter().flatten() {
                let number = choice["index"].as_u64().and_then(|index| usize::try_from(index).ok());
                if let Some(first) = number.and_then(|number| first_ms.get_mut(number)) {
                    first.get_or_insert(at);
                }
            }
            if let Some(timings) = chunk.get("timings") {
                engine = match engine_times(timings) {
                    Ok(times) => times,
                    Err(error) => return Err(self.cut(&format!("its timings: {error}")).await),
                };
            }
        }
        match Wave::of(&first_ms, ms(), &engine) {
            Some(wave) => Ok(wave),
            None => Err(self.cut("its answer ended before every prompt had its token").await),
        }
    }

    /// Why an answer is not complete: a server that has ended says it best.
    async fn cut(&mut self, reason: &str) -> ArmError {
        if let Err(ended) = self.check().await {
            return ended;
        }
        let (arm, reason) = (self.arm().to_owned(), reason.to_owned());
        ArmError::Refused { arm, what: "a wave of prompts", reason }
    }
}

/// Those of each prompt: in a list where there are several.
fn engine_times(timings: &Value) -> Result<Vec<EngineTimes>, serde_json::Error> {
    match timings.get("prompts") {
        Some(each) => serde_json::from_value(each.clone()),
        None => serde_json::from_value(timings.clone()).map(|one| vec![one]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(calls: u64) -> Value {
        json!({"queue_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 9.0, "prefill_calls": 1,
            "calls_before_first_token": calls, "rows_before_first_token": 64, "prompt_tokens": 32,
            "cached_tokens": 0, "completion_tokens": 4, "preemptions": 0})
    }

    #[test]
    fn each_prompt_has_its_own_times() {
        let one = engine_times(&times(1)).unwrap();
        assert_eq!((one[0].ttft_ms(), one[0].tpot_ms()), (3.0, Some(3.0)));
        let mut both = times(3);
        both["prompts"] = json!([times(1), times(2)]);
        let both = engine_times(&both).unwrap();
        assert_eq!(both.len(), 2);
        let wave = Wave::of(&[Some(5.0), Some(8.0)], 9.0, &both).unwrap();
        assert_eq!((wave.wave_ms, wave.mean_ttft_ms, wave.calls()), (8.0, 6.5, 2));
        assert_eq!(wave.prompt_tokens(), 64);
        assert_eq!(Wave::of(&[Some(5.0), None], 9.0, &both), None, "one had no token");
        assert_eq!(Wave::of(&[Some(5.0)], 9.0, &both), None);
    }

    #[test]
    fn one_token_has_no_time_after_the_first() {
        let times = EngineTimes { completion_tokens: 1, decode_ms: 0.0, ..EngineTimes::default() };
        assert_eq!(times.tpot_ms(), None);
        assert_eq!(EngineTimes::default().tpot_ms(), None);
    }
}
