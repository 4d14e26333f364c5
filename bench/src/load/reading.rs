//! From the events of a stream, as they come, to what a client saw of an answer.
//!
//! The first token is the first event that bears one: text, reasoning or token ids. A role does not, and
//! neither does a count. Where an answer's tokens came in fewer pieces than there are tokens, a
//! piece's time is shared by its tokens:
//!
//! - events that came in one read of the socket are one piece, since they came together;
//! - how many tokens a piece has is said by its token ids or by running usage, else it has one, and
//!   those that the final usage counts beyond are given to the pieces in proportion to their text;
//! - an end without text is a piece if the usage counts a token that no other piece has: the
//!   end-of-sequence token, or text that was held back;
//! - the time between two pieces is divided by the tokens of the later one, which gives as many
//!   inter-token latencies. The further tokens of the very first chunk have none, since nobody saw when
//!   they were made; further chunks of the first piece were seen with it, after no time.

use serde_json::Value;

use super::failure::Failure;
use super::wire::{Chunk, Usage};

/// A complete answer as its client saw it. Times are seconds from the sending of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// To the first token.
    pub ttft: f64,
    /// To the first chunk, a role or whatever it had.
    pub ttft_first_chunk: f64,
    /// Between tokens, see the module's text.
    pub itls: Vec<f64>,
    /// To the end of the answer.
    pub latency: f64,
    /// Tokens generated: by the server's count, else by ids, else one a chunk.
    pub output_tokens: usize,
    /// Who counted them.
    pub counted_by: CountedBy,
    /// Tokens of the prompt by the server's count.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the prompt that a cache had, by the server's count.
    pub cached_tokens: Option<usize>,
    /// What it says.
    pub text: String,
    /// What the model thought.
    pub reasoning: String,
    /// Why it ended.
    pub finish_reason: Option<String>,
    /// The server's own measurements, as it sent them.
    pub timings: Option<Value>,
}

impl Answer {
    /// Mean time of a token after the first; none of an answer of one.
    pub fn tpot(&self) -> Option<f64> {
        let after_first = self.output_tokens.checked_sub(1).filter(|tokens| *tokens > 0)?;
        Some((self.latency - self.ttft) / after_first as f64)
    }
}

/// Who counted an answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedBy {
    /// The server, in its usage.
    Usage,
    /// The ids it sent.
    Ids,
    /// Nobody: chunks with tokens were counted, which is too few where a chunk has several.
    Chunks,
}

/// A stream that is being read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pieces: Vec<Piece>,
    first_chunk: Option<f64>,
    /// An end without text.
    closing: Option<f64>,
    end: f64,
    usage: Usage,
    /// Tokens by running usage.
    running: usize,
    timings: Option<Value>,
    finish_reason: Option<String>,
    done: bool,
    events: usize,
    text: String,
    reasoning: String,
}

/// What came in one read.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    at: f64,
    /// Tokens, where the server says.
    tokens: Option<usize>,
    /// Those of its first chunk, where the server says.
    head: Option<usize>,
    chunks: usize,
    characters: usize,
}

impl Piece {
    fn new(at: f64, tokens: Option<usize>, characters: usize) -> Self {
        Self { at, tokens, head: tokens, chunks: 1, characters }
    }

    /// Tokens that were seen together with the first chunk's, but not in it.
    fn beside_the_head(&self) -> usize {
        match self.tokens.zip(self.head) {
            Some((tokens, head)) => tokens - head,
            None => self.chunks - 1,
        }
    }
}

impl Reading {
    /// Takes the data of an event that came `at` so many seconds. Events of one read of the socket have
    /// the same time. True when it was the first with a token.
    ///
    /// # Errors
    ///
    /// An error event, or what cannot be read.
    pub fn take(&mut self, at: f64, data: &str) -> Result<bool, Failure> {
        let chunk = Chunk::parse(data)?;
        self.events += 1;
        self.done |= chunk.done;
        if chunk.has_choice {
            self.first_chunk.get_or_insert(at);
            self.end = at;
        }
        let first = self.pieces.is_empty();
        let counted = self.count(&chunk);
        if chunk.bears_token() {
            self.add(at, &chunk, counted);
        } else if chunk.finish_reason.is_some() {
            self.closing = Some(at);
        }
        self.text.push_str(&chunk.text);
        self.reasoning.push_str(&chunk.reasoning);
        self.finish_reason = chunk.finish_reason.or(self.finish_reason.take());
        self.timings = chunk.timings.or(self.timings.take());
        Ok(first && !self.pieces.is_empty())
    }

    /// Tokens of a chunk, where it says.
    fn count(&mut self, chunk: &Chunk) -> Option<usize> {
        let usage = chunk.usage.unwrap_or_default();
        self.usage.prompt = usage.prompt.or(self.usage.prompt);
        self.usage.completion = usage.completion.or(self.usage.completion);
        self.usage.cached = usage.cached.or(self.usage.cached);
        // Usage beside a choice that goes on is a running count.
        let running = usage.completion.filter(|_| chunk.has_choice && chunk.bears_token());
        let since = running.and_then(|total| {
            let since = total.checked_sub(self.running)?;
            self.running = total;
            (since > 0).then_some(since)
        });
        chunk.ids.or(since)
    }

    fn add(&mut self, at: f64, chunk: &Chunk, tokens: Option<usize>) {
        let characters = chunk.text.chars().count() + chunk.reasoning.chars().count();
        match self.pieces.last_mut() {
            Some(piece) if piece.at == at => {
                piece.tokens = piece.tokens.zip(tokens).map(|(a, b)| a + b);
                piece.chunks += 1;
                piece.characters += characters;
            }
            _ => self.pieces.push(Piece::new(at, tokens, characters)),
        }
    }

    /// Whether nothing follows.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Chunks with tokens so far.
    pub fn chunks(&self) -> usize {
        self.pieces.iter().map(|piece| piece.chunks).sum()
    }

    /// The answer, now that the stream has ended.
    ///
    /// # Errors
    ///
    /// The answer is not complete, or has no token.
    pub fn finish(mut self) -> Result<Answer, Failure> {
        if !self.done && self.finish_reason.is_none() {
            let reason = "it ended without a reason to finish and without [DONE]".to_owned();
            return Err(Failure::Cut { chunks: self.chunks(), reason });
        }
        self.add_end();
        let Some(first) = self.pieces.first().copied() else {
            return Err(Failure::NoToken { events: self.events });
        };
        let (total, counted_by) = self.total();
        Ok(Answer {
            ttft: first.at,
            ttft_first_chunk: self.first_chunk.unwrap_or(first.at),
            itls: itls(&self.pieces, total),
            latency: self.end.max(first.at),
            output_tokens: total,
            counted_by,
            prompt_tokens: self.usage.prompt,
            cached_tokens: self.usage.cached.or_else(|| self.timed("cache_n")),
            text: self.text,
            reasoning: self.reasoning,
            finish_reason: self.finish_reason,
            timings: self.timings,
        })
    }

    /// Makes the end a piece if a token is left for it.
    fn add_end(&mut self) {
        let Some(at) = self.closing else { return };
        let known: usize = self.pieces.iter().map(|p| p.tokens.unwrap_or(p.chunks)).sum();
        let left = self.usage.completion.is_some_and(|total| total > known);
        if !left {
            return;
        }
        match self.pieces.last_mut().filter(|piece| piece.at == at) {
            Some(piece) => piece.chunks += 1,
            None => self.pieces.push(Piece::new(at, None, 0)),
        }
    }

    fn total(&self) -> (usize, CountedBy) {
        if let Some(tokens) = self.usage.completion.filter(|tokens| *tokens > 0) {
            return (tokens, CountedBy::Usage);
        }
        let ids: Option<usize> = self.pieces.iter().map(|piece| piece.tokens).sum();
        match ids.filter(|ids| *ids > 0) {
            Some(ids) => (ids, CountedBy::Ids),
            None => (self.chunks(), CountedBy::Chunks),
        }
    }

    /// A count of `llama-server`, which has its own way of telling some.
    fn timed(&self, name: &str) -> Option<usize> {
        let count = self.timings.as_ref()?.get(name)?.as_u64()?;
        usize::try_from(count).ok()
    }
}

/// Inter-token latencies of `total` tokens that came in these pieces.
fn itls(pieces: &[Piece], total: usize) -> Vec<f64> {
    let Some(counts) = shared_out(pieces, total) else {
        // More pieces than tokens: some token came in several. All that is known is how long they took.
        let took = match pieces {
            [first, .., last] => last.at - first.at,
            _ => 0.0,
        };
        let gaps = total.saturating_sub(1);
        return vec![took / gaps.max(1) as f64; gaps];
    };
    let (Some(first), Some(count)) = (pieces.first(), counts.first()) else { return Vec::new() };
    let at_once = first.beside_the_head().min(count - 1);
    let mut itls = vec![0.0; at_once];
    for (pair, count) in pieces.windows(2).zip(&counts[1..]) {
        let each = (pair[1].at - pair[0].at) / *count as f64;
        itls.extend(std::iter::repeat_n(each, *count));
    }
    itls
}

/// Tokens of each piece, `total` together; none if there are fewer tokens than pieces.
fn shared_out(pieces: &[Piece], total: usize) -> Option<Vec<usize>> {
    let mut counts: Vec<usize> = pieces.iter().map(|p| p.tokens.unwrap_or(p.chunks)).collect();
    let sum: usize = counts.iter().sum();
    if total < sum {
        // Chunks that share a read may also share a token; pieces do not.
        return (total >= pieces.len()).then(|| shrunk(counts, total));
    }
    let excess = total - sum;
    let unknown: usize = weights(pieces).sum();
    if excess == 0 || unknown == 0 {
        // Tokens that no chunk has room for were not seen, and have no times.
        return Some(counts);
    }
    // In proportion to the text: each piece ends where its share of the running text does, rounded.
    let (mut text, mut given) = (0, 0);
    for (count, weight) in counts.iter_mut().zip(weights(pieces)) {
        text += weight;
        let until = (2 * excess * text + unknown) / (2 * unknown);
        *count += until - given;
        given = until;
    }
    Some(counts)
}

/// What each piece may have of tokens that nobody has counted.
fn weights(pieces: &[Piece]) -> impl Iterator<Item = usize> {
    pieces.iter().map(|piece| if piece.tokens.is_some() { 0 } else { piece.characters })
}

/// The counts, made smaller from the largest down until they are `total` together.
fn shrunk(mut counts: Vec<usize>, total: usize) -> Vec<usize> {
    let mut over = counts.iter().sum::<usize>() - total;
    while over > 0 {
        let Some(largest) = counts.iter_mut().max() else { break };
        *largest -= 1;
        over -= 1;
    }
    counts
}

#[cfg(test)]
mod tests;
