//! How many sequences, KV blocks and positions an engine gets, before a weight is read.
//!
//! What was asked for is taken or refused with the largest number that fits; what was not is lowered to
//! what fits, with a warning.

use pocket_config::{KvCacheDtype, Settings};
use pocket_device::{KV_BLOCK_TOKENS, KvDtype};
use pocket_model::ModelError;
use pocket_model::forward::ModelLimits;
use pocket_model::memory::{Bytes, KvBudget, Sizing, kv_blocks};

/// Sequences computed at a time when nobody says.
pub const DEFAULT_SEQUENCES: usize = 16;

/// A number, and whether somebody asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The number.
    pub value: usize,
    /// It is this number or none.
    pub asked: bool,
}

/// What an engine is to have.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Positions of a sequence.
    pub context: Wish,
    /// Sequences computed at a time.
    pub sequences: Wish,
    /// Prompt tokens of a step.
    pub prompt_rows: usize,
    /// What keys and values may take.
    pub budget: KvBudget,
    /// How they are stored.
    pub kv_dtype: KvDtype,
}

/// What it gets.
#[derive(Debug)]
pub struct Sizes {
    /// The sizes; of what is refused, those that were asked for.
    pub limits: ModelLimits,
    /// Why these sizes cannot be had.
    pub refusal: Option<anyhow::Error>,
}

/// The budget the settings give to keys and values.
pub fn budget(settings: &Settings) -> KvBudget {
    match (settings.kv_cache_bytes, settings.kv_cache_fraction) {
        (Some(size), _) => KvBudget::Bytes(size.bytes()),
        (None, Some(part)) => KvBudget::FractionOfFree(part.get()),
        (None, None) => KvBudget::Auto,
    }
}

/// The type the settings give to keys and values.
pub fn kv_dtype(settings: &Settings) -> KvDtype {
    match settings.kv_cache_dtype {
        KvCacheDtype::Float32 => KvDtype::Float32,
        KvCacheDtype::Bf16 => KvDtype::Bf16,
    }
}

/// Settles the sizes of a model on this machine.
pub fn choose(sizing: &Sizing<'_>, wishes: &Wishes) -> Result<Sizes, ModelError> {
    let search = Search { sizing, wishes };
    let Wishes { context, sequences, .. } = *wishes;
    let (context, sequences) = match search.largest_sequences(context.value, sequences.value) {
        Some(most) if most == sequences.value || !sequences.asked => (context.value, most),
        // There is no room for one sequence of this length, or not for as many as were asked for;
        // shorter ones may fit.
        _ if !context.asked => match search.shorten() {
            Some(fitting) => fitting,
            None => {
                let shortest = context.value.min(KV_BLOCK_TOKENS);
                let most = search.largest_sequences(shortest, sequences.value);
                return search.refuse(Largest::Sequences(most));
            }
        },
        Some(most) => return search.refuse(Largest::Sequences(Some(most))),
        None => {
            let fewest = if sequences.asked { sequences.value } else { 1 };
            return search.refuse(Largest::Context(search.longest_context(fewest)));
        }
    };
    search.warn_if_lowered(context, sequences);
    Ok(Sizes { limits: search.with_blocks(context, sequences)?, refusal: None })
}

/// The largest number that fits of what is in the way; none when no number does.
#[derive(Clone, Copy, Debug)]
enum Largest {
    Context(Option<usize>),
    Sequences(Option<usize>),
}

impl Largest {
    /// The error with what to do about it.
    fn explain(self, error: ModelError) -> anyhow::Error {
        let (largest, setting) = match self {
            Largest::Context(largest) => (largest, "max-model-len"),
            Largest::Sequences(largest) => (largest, "max-num-seqs"),
        };
        let Some(largest) = largest else { return error.into() };
        let advice = format!("the largest {setting} that fits is {largest}");
        match (error, self) {
            (ModelError::Memory { slots, context, needed, available, from, .. }, _) => {
                ModelError::Memory { slots, context, needed, available, from, advice }.into()
            }
            (
                ModelError::KvBudget { slots, context, needed, there, budget, .. },
                Largest::Context(_),
            ) => ModelError::KvBudget { slots, context, needed, there, budget, largest }.into(),
            (error, _) => anyhow::Error::from(error).context(advice),
        }
    }
}

struct Search<'a> {
    sizing: &'a Sizing<'a>,
    wishes: &'a Wishes,
}

impl Search<'_> {
    fn limits(&self, context: usize, sequences: usize) -> ModelLimits {
        ModelLimits {
            max_model_len: context,
            max_rows: self.wishes.prompt_rows + sequences,
            slots: sequences,
            kv_blocks: kv_blocks(context, 1),
            kv_dtype: self.wishes.kv_dtype,
        }
    }

    fn with_blocks(&self, context: usize, sequences: usize) -> Result<ModelLimits, ModelError> {
        let limits = self.limits(context, sequences);
        let kv_blocks = self.sizing.kv_blocks(&limits, self.wishes.budget)?;
        Ok(ModelLimits { kv_blocks, ..limits })
    }

    fn largest_sequences(&self, context: usize, sequences: usize) -> Option<usize> {
        self.sizing.largest_slots(&self.limits(context, sequences), self.wishes.budget)
    }

    /// The longest context, a multiple of a block below the one wished for, with so many sequences.
    fn longest_context(&self, sequences: usize) -> Option<usize> {
        let fits = |blocks: usize| {
            self.largest_sequences(blocks * KV_BLOCK_TOKENS, sequences) == Some(sequences)
        };
        // `below` fits or is none, `above` does not: a longer context never takes less.
        let (mut below, mut above) = (0, self.wishes.context.value.div_ceil(KV_BLOCK_TOKENS));
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if fits(middle) {
                below = middle;
            } else {
                above = middle;
            }
        }
        (below > 0).then_some(below * KV_BLOCK_TOKENS)
    }

    /// A shorter context and the sequences that fit with it: all of them if that can be.
    fn shorten(&self) -> Option<(usize, usize)> {
        let all = self.wishes.sequences.value;
        if let Some(context) = self.longest_context(all) {
            return Some((context, all));
        }
        if self.wishes.sequences.asked {
            return None;
        }
        let context = self.longest_context(1)?;
        Some((context, self.largest_sequences(context, all)?))
    }

    /// What was wished for, and why it cannot be had.
    fn refuse(&self, largest: Largest) -> Result<Sizes, ModelError> {
        let limits = self.limits(self.wishes.context.value, self.wishes.sequences.value);
        let (limits, checked) = match self.with_blocks(limits.max_model_len, limits.slots) {
            Ok(limits) => (limits, self.sizing.plan(limits)?.check()),
            Err(error) => (limits, Err(error)),
        };
        Ok(Sizes { limits, refusal: checked.err().map(|error| largest.explain(error)) })
    }

    fn warn_if_lowered(&self, context: usize, sequences: usize) {
        let available = Bytes(self.sizing.available.bytes);
        let wishes = self.wishes;
        if context < wishes.context.value {
            tracing::warn!(
                max_model_len = context,
                default = wishes.context.value,
                %available,
                "max-model-len is lowered to what memory and KV budget have room for"
            );
        }
        if sequences < wishes.sequences.value {
            tracing::warn!(
                max_num_seqs = sequences,
                default = wishes.sequences.value,
                %available,
                "max-num-seqs is lowered to what memory and KV budget have room for"
            );
        }
    }
}

#[cfg(test)]
mod tests;
