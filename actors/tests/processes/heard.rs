//! All that a request is told, in a form in which two requests can be compared bit by bit.

use pocket_actors::api::{
    EngineCounters, Event, FinishReason, GenerateRequest, RequestError, Score, Timings,
    TokenLogprobs,
};
use pocket_actors::{EngineHandle, RequestStream};

/// A token's log-probability, its rank, and the alternatives: functions of the logits of a whole row,
/// as bits.
pub type Bits = (u64, u32, Vec<(u32, u64)>);

fn bits(of: TokenLogprobs) -> Bits {
    let top = of.top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect();
    (of.logprob.to_bits(), of.rank, top)
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<Option<Bits>>,
    pub reason: Option<FinishReason>,
}

/// What a request said, whatever it cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    pub prompt: Option<Vec<Option<Bits>>>,
    pub answers: Vec<Answer>,
}

/// What a request said, and what it cost.
#[derive(Clone, Debug)]
pub struct Heard {
    pub said: Said,
    pub timings: Timings,
    pub counters: EngineCounters,
}

impl Heard {
    /// The tokens of the only answer.
    pub fn ids(&self) -> &[u32] {
        assert_eq!(self.said.answers.len(), 1);
        &self.said.answers[0].ids
    }
}

impl Said {
    fn answer(&mut self, choice: usize) -> &mut Answer {
        if self.answers.len() <= choice {
            self.answers.resize(choice + 1, Answer::default());
        }
        let answer = &mut self.answers[choice];
        assert_eq!(answer.reason, None, "nothing follows the end of an answer");
        answer
    }

    /// Takes an event of an answer.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Prompt { logprobs } => {
                assert!(self.prompt.is_none() && self.answers.is_empty(), "the prompt comes first");
                self.prompt = Some(logprobs.into_iter().map(|of| of.map(bits)).collect());
            }
            Event::Token { choice, id, text, logprobs } => {
                let answer = self.answer(choice);
                answer.ids.push(id);
                answer.text += &text;
                answer.logprobs.push(logprobs.map(bits));
            }
            Event::Ended { choice, reason, text } => {
                let answer = self.answer(choice);
                answer.text += &text;
                answer.reason = Some(reason);
            }
            Event::Finished { .. } | Event::Failed(_) => panic!("{event:?} is not of an answer"),
        }
    }
}

/// Everything a stream says.
pub async fn hear(mut stream: RequestStream) -> Result<Heard, RequestError> {
    let mut said = Said::default();
    while let Some(event) = stream.next().await {
        match event {
            Event::Finished { timings, counters } => {
                assert!(said.answers.iter().all(|answer| answer.reason.is_some()));
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return Ok(Heard { said, timings, counters });
            }
            Event::Failed(error) => return Err(error),
            event => said.take(event),
        }
    }
    panic!("a stream ended without saying how");
}

/// One request by itself.
pub async fn ask(handle: &EngineHandle, request: GenerateRequest) -> Heard {
    hear(handle.submit(request).await.unwrap()).await.unwrap()
}

/// Requests that arrive together.
pub async fn ask_all(handle: &EngineHandle, requests: Vec<GenerateRequest>) -> Vec<Heard> {
    let mut all = vec![];
    // Streams hold what is not heard yet.
    for stream in handle.submit_all(requests).await.unwrap() {
        all.push(hear(stream).await.unwrap());
    }
    all
}

/// The bits of a score: the log-probabilities, and the logits of the last row.
pub fn score_bits(score: &Score) -> (Vec<Option<u64>>, Vec<u32>) {
    let logprobs = score.logprobs.iter().map(|logprob| logprob.map(f64::to_bits)).collect();
    let last = score.last_logits.iter().flatten().map(|logit| logit.to_bits()).collect();
    (logprobs, last)
}

/// The value of a series in the engine's metrics.
pub fn metric(handle: &EngineHandle, series: &str) -> f64 {
    let text = handle.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in the metrics")).parse().unwrap()
}
