//! Checkpoints whose greedy answer is known beforehand.
//!
//! Every layer adds nothing to the residual (its output projections are zero), so the head sees the
//! last token's embedding. Embeddings are unit vectors, one direction for each token of the chain and
//! one for all others, and the head's row of a token points along its predecessor's: the head is a map
//! from a token to its successor. After any prompt the answer begins at the beginning of the chain,
//! unless the prompt's last token is in the chain itself.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::fill::Fill;
use super::shape::Shape;
use super::tensors::{self, Tensor};
use super::tokenizer::Vocabulary;
use super::write::{Checkpoint, write};

/// What follows the last token of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The end-of-message token: the answer is complete.
    #[default]
    Stop,
    /// The token at this place of the chain, from 0: the answer goes on for ever.
    LoopTo(usize),
}

/// Why a chain cannot be scripted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// There is nothing to say.
    #[error("the chain is empty")]
    Empty,
    /// A token would need two successors.
    #[error(
        "token {token} is at places {first} and {again} of the chain: what follows a token depends on \
         the token alone, so that each may come once; cut the text differently or end in a loop"
    )]
    Repeated {
        /// The token, as text or id.
        token: String,
        /// Where it comes first.
        first: usize,
        /// Where it comes again.
        again: usize,
    },
    /// A place that the chain does not have.
    #[error("place {place} is beyond the chain's {length} tokens")]
    NoSuchPlace {
        /// The place named.
        place: usize,
        /// Tokens of the chain.
        length: usize,
    },
}

/// A chain of tokens to be answered, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    vocabulary: Vocabulary,
    chain: Vec<u32>,
    bytes: Vec<Vec<u8>>,
    end: End,
    ties: BTreeSet<usize>,
}

impl Script {
    /// Answers `text`, cut into tokens as short as can be without one coming twice: most have two
    /// bytes, and a character beyond ASCII is spread over several tokens. No token is a single ASCII
    /// character, so that no prompt that ends in ASCII ends in the chain.
    ///
    /// # Errors
    ///
    /// An empty text.
    pub fn text(text: &str) -> Result<Self, ScriptError> {
        Self::pieces(cut(text.as_bytes()))
    }

    /// Answers these pieces, a token each.
    ///
    /// # Errors
    ///
    /// No piece, an empty one, or one that comes twice.
    pub fn pieces<P: Into<Vec<u8>>>(
        pieces: impl IntoIterator<Item = P>,
    ) -> Result<Self, ScriptError> {
        let pieces: Vec<Vec<u8>> = pieces.into_iter().map(Into::into).collect();
        if pieces.iter().any(Vec::is_empty) {
            return Err(ScriptError::Empty);
        }
        distinct(&pieces, |piece| format!("{:?}", String::from_utf8_lossy(piece)))?;
        let longer = pieces.iter().filter(|piece| piece.len() > 1).cloned();
        let vocabulary = Vocabulary::new(longer);
        let chain = pieces.iter().filter_map(|piece| vocabulary.id(piece)).collect();
        Ok(Self::new(vocabulary, chain, pieces))
    }

    /// Answers the tokens of these ids. Ids below 256 are bytes; the others' texts are made up.
    ///
    /// # Errors
    ///
    /// No id, or one that comes twice.
    pub fn ids(ids: &[u32]) -> Result<Self, ScriptError> {
        distinct(ids, u32::to_string)?;
        let largest = ids.iter().copied().max().unwrap_or_default();
        let text = |id: u32| match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) => format!(" w{id}").into_bytes(),
        };
        let vocabulary = Vocabulary::new((256..=largest).map(text));
        Ok(Self::new(vocabulary, ids.to_vec(), ids.iter().map(|&id| text(id)).collect()))
    }

    fn new(vocabulary: Vocabulary, chain: Vec<u32>, bytes: Vec<Vec<u8>>) -> Self {
        Self { vocabulary, chain, bytes, end: End::default(), ties: BTreeSet::new() }
    }

    /// Sets what follows the last token.
    ///
    /// # Errors
    ///
    /// A loop to a place beyond the chain.
    pub fn then(mut self, end: End) -> Result<Self, ScriptError> {
        if let End::LoopTo(place) = end {
            self.check(place)?;
        }
        self.end = end;
        Ok(self)
    }

    /// Gives the token at this place a rival: another token at the end of the vocabulary whose logits
    /// are always exactly equal. The rival's text is ` <tie N>`; after it the chain begins again.
    ///
    /// # Errors
    ///
    /// A place beyond the chain.
    pub fn tie_at(mut self, place: usize) -> Result<Self, ScriptError> {
        self.check(place)?;
        self.ties.insert(place);
        Ok(self)
    }

    fn check(&self, place: usize) -> Result<(), ScriptError> {
        let length = self.chain.len();
        if place < length { Ok(()) } else { Err(ScriptError::NoSuchPlace { place, length }) }
    }

    /// Writes the checkpoint into `directory`. It has every kind of layer and splits over 1, 2 and 4
    /// ranks.
    ///
    /// # Errors
    ///
    /// A directory that cannot be written or holds a checkpoint.
    pub fn write(&self, directory: &Path) -> anyhow::Result<ScriptedCheckpoint> {
        let mut vocabulary = self.vocabulary.clone();
        let rivals: Vec<(u32, usize)> = self
            .ties
            .iter()
            .map(|&place| (vocabulary.push(format!(" <tie {place}>").into_bytes()), place))
            .collect();
        let eos = vocabulary.end_id();
        let shape = Shape {
            vocab_size: vocabulary.len(),
            // A direction for each token of the chain and one for the others.
            hidden_size: (self.chain.len() + 1).next_multiple_of(64),
            tie_word_embeddings: false,
            max_position_embeddings: 8192,
            ..Shape::tiny()
        };
        let mut tensors = tensors::random(&shape, 0);
        for tensor in &mut tensors {
            self.script(tensor, &shape, eos, &rivals);
        }
        let checkpoint = Checkpoint {
            config: shape.config(eos)?,
            vocabulary: &vocabulary,
            tensors: &tensors,
            shards: 1,
        };
        write(&checkpoint, directory)?;
        let (chain, bytes) = (self.chain.clone(), self.bytes.clone());
        let rivals = rivals.iter().map(|&(id, _)| id).collect();
        Ok(ScriptedCheckpoint { chain, bytes, end: self.end, eos, rivals })
    }

    /// Replaces what a random model would have by what makes it say the chain.
    fn script(&self, tensor: &mut Tensor, shape: &Shape, eos: u32, rivals: &[(u32, usize)]) {
        const SILENT: [&str; 3] = ["o_proj.weight", "out_proj.weight", "down_proj.weight"];
        let name = tensor.name.as_str();
        if SILENT.iter().any(|suffix| name.ends_with(suffix)) || name == "model.norm.weight" {
            tensor.fill = Fill::Zero;
        } else if name == "model.embed_tokens.weight" {
            let places: HashMap<u32, usize> = self.chain.iter().copied().zip(0..).collect();
            let direction = |id: usize| places.get(&(id as u32)).map_or(0, |place| place + 1);
            let units = (0..shape.vocab_size).map(|id| (id, direction(id), 1.0));
            tensor.fill = Fill::Sparse(units.collect());
        } else if name == "lm_head.weight" {
            // The norm makes a unit vector sqrt(hidden) long: a successor's logit is 32, others' 0.
            let weight = 32.0 / (shape.hidden_size as f32).sqrt();
            let mut entries = Vec::new();
            for from in 0..=self.chain.len() {
                let place = match self.end {
                    _ if from < self.chain.len() => Some(from),
                    End::LoopTo(place) => Some(place),
                    End::Stop => None,
                };
                let successor = place.map_or(eos, |place| self.chain[place]);
                let rivals = rivals.iter().filter(|(_, tied)| Some(*tied) == place);
                let rows = rivals.map(|&(id, _)| id).chain([successor]);
                entries.extend(rows.map(|row| (row as usize, from, weight)));
            }
            tensor.fill = Fill::Sparse(entries);
        }
    }
}

/// Cuts a text into pieces that all differ, as short as can be from left to right; none is a single
/// ASCII character unless the text is one.
fn cut(text: &[u8]) -> Vec<&[u8]> {
    let mut pieces: Vec<&[u8]> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let fits =
            |piece: &&[u8]| (piece.len() > 1 || !piece.is_ascii()) && !pieces.contains(piece);
        if let Some(piece) = (1..=rest.len()).map(|end| &rest[..end]).find(fits) {
            pieces.push(piece);
            rest = &rest[piece.len()..];
            continue;
        }
        // The end is too short for a piece of its own: it joins those before it.
        while let Some(piece) = pieces.pop() {
            rest = &text[text.len() - rest.len() - piece.len()..];
            if !pieces.contains(&rest) {
                break;
            }
        }
        pieces.push(rest);
        break;
    }
    pieces
}

/// Refuses a chain that is empty or in which something comes twice.
fn distinct<T: Eq + std::hash::Hash>(
    chain: &[T],
    name: impl Fn(&T) -> String,
) -> Result<(), ScriptError> {
    let mut places = HashMap::new();
    for (again, token) in chain.iter().enumerate() {
        if let Some(first) = places.insert(token, again) {
            return Err(ScriptError::Repeated { token: name(token), first, again });
        }
    }
    if chain.is_empty() { Err(ScriptError::Empty) } else { Ok(()) }
}

/// What a scripted checkpoint answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptedCheckpoint {
    /// Token ids of the chain, in order.
    pub chain: Vec<u32>,
    /// The end-of-message token.
    pub eos: u32,
    /// The rivals of tied tokens, in order of their places.
    pub rivals: Vec<u32>,
    bytes: Vec<Vec<u8>>,
    end: End,
}

impl ScriptedCheckpoint {
    /// The first `count` generated tokens, the end-of-message token included if it is reached.
    pub fn answer(&self, count: usize) -> Vec<u32> {
        let places = self.places().take(count).map(|place| self.chain[place]);
        let stop = (self.end == End::Stop).then_some(self.eos);
        places.chain(stop).take(count).collect()
    }

    /// The text of the first `count` generated tokens, without an incomplete character at its end.
    pub fn text(&self, count: usize) -> String {
        let bytes: Vec<u8> =
            self.places().take(count).flat_map(|place| self.bytes[place].clone()).collect();
        match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => {
                String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned()
            }
            _ => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    /// Places of the chain in the order in which they are answered.
    fn places(&self) -> impl Iterator<Item = usize> {
        let length = self.chain.len();
        let again = match self.end {
            End::Stop => length..length,
            End::LoopTo(place) => place..length,
        };
        (0..length).chain(std::iter::repeat(again).take_while(|again| !again.is_empty()).flatten())
    }
}

#[cfg(test)]
mod tests;
