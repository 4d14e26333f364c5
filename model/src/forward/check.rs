//! Whether a step fits what a rank was loaded for. The coordinator is trusted to plan well; a mistake
//! of its must still come out as an error, not as another sequence's state overwritten.

use std::collections::{HashMap, HashSet};

use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};

use super::ForwardError;
use super::rank_model::ModelLimits;
use super::step::{Fork, Step, StepSegment, Want};
use crate::config::ModelConfig;

/// Checks every index a step carries.
pub(super) fn step(
    step: &Step,
    config: &ModelConfig,
    limits: &ModelLimits,
) -> Result<(), ForwardError> {
    let refuse = |detail: String| Err(ForwardError::Step { number: step.number, detail });
    let rows = step.rows();
    if rows == 0 || rows > limits.max_rows {
        return refuse(format!("{rows} rows, but a step holds 1 to {}", limits.max_rows));
    }
    let mut slots = HashSet::new();
    let mut blocks = Blocks::default();
    for (index, segment) in step.segments.iter().enumerate() {
        if let Some(detail) = segment_fault(segment, config, limits) {
            return refuse(format!("segment of slot {}: {detail}", segment.slot));
        }
        if !slots.insert(segment.slot) {
            return refuse(format!("slot {} has two segments", segment.slot));
        }
        if let Err(detail) = blocks.claim(index, segment) {
            return refuse(detail);
        }
    }
    if let Some(detail) = fork_fault(step, limits, &slots, &blocks) {
        return refuse(detail);
    }
    let mut next = 0;
    for output in &step.outputs {
        if output.row < next || output.row >= rows {
            return refuse(format!("output row {} is out of order or range", output.row));
        }
        next = output.row + 1;
        if let Want::Target(id) = output.want
            && id as usize >= config.vocab_size
        {
            return refuse(format!("target {id} is outside the vocabulary"));
        }
    }
    Ok(())
}

/// KV blocks that the segments name. Sequences share blocks they only read (those of a common
/// prompt); a block that one of them writes is its own.
#[derive(Default)]
struct Blocks(HashMap<u32, Claim>);

/// Who names a block.
struct Claim {
    /// Index of the last segment that does.
    segment: usize,
    /// Whether a segment writes it.
    written: bool,
}

impl Blocks {
    /// Takes in the blocks of the segment at `index`, or says which it may not name.
    fn claim(&mut self, index: usize, segment: &StepSegment) -> Result<(), String> {
        let first = segment.position / KV_BLOCK_TOKENS;
        let end = (segment.position + segment.tokens.len()).div_ceil(KV_BLOCK_TOKENS);
        for (at, block) in segment.blocks.iter().enumerate() {
            let written = (first..end).contains(&at);
            let claim = Claim { segment: index, written };
            let Some(before) = self.0.insert(*block, claim) else { continue };
            if before.segment == index {
                return Err(format!("slot {} names KV block {block} twice", segment.slot));
            }
            if written || before.written {
                return Err(format!("KV block {block} is written and belongs to two segments"));
            }
        }
        Ok(())
    }
}

/// What is wrong with the forks of a step whose segments are right.
fn fork_fault(
    step: &Step,
    limits: &ModelLimits,
    slots: &HashSet<u32>,
    blocks: &Blocks,
) -> Option<String> {
    let (mut to_slots, mut to_blocks) = (HashSet::new(), HashSet::new());
    for Fork { from_slot, to_slot, block } in &step.forks {
        let fault = |detail: String| Some(format!("fork of slot {from_slot}: {detail}"));
        let Some(from) = step.segments.iter().find(|segment| segment.slot == *from_slot) else {
            return fault("it has no segment in the step".into());
        };
        if *to_slot as usize >= limits.slots {
            return fault(format!("slot {to_slot} of {}", limits.slots));
        }
        if slots.contains(to_slot) || !to_slots.insert(*to_slot) {
            return fault(format!("slot {to_slot} is in use by the step"));
        }
        let Some((from_block, to_block)) = block else { continue };
        if !from.blocks.contains(from_block) {
            return fault(format!("KV block {from_block} is not one of its blocks"));
        }
        if *to_block as usize >= limits.kv_blocks {
            return fault(format!("KV block {to_block} of {}", limits.kv_blocks));
        }
        if blocks.0.contains_key(to_block) || !to_blocks.insert(*to_block) {
            return fault(format!("KV block {to_block} is in use by the step"));
        }
    }
    None
}

fn segment_fault(
    segment: &StepSegment,
    config: &ModelConfig,
    limits: &ModelLimits,
) -> Option<String> {
    let end = segment.position.saturating_add(segment.tokens.len());
    if segment.tokens.is_empty() {
        return Some("no tokens".into());
    }
    if segment.slot as usize >= limits.slots {
        return Some(format!("there are {} slots", limits.slots));
    }
    if end > limits.max_model_len {
        return Some(format!("ends at {end}, the context is {}", limits.max_model_len));
    }
    if !segment.generated && !segment.position.is_multiple_of(RECURRENCE_CHUNK) {
        return Some(format!("prompt tokens start at {}, not at a chunk", segment.position));
    }
    if segment.blocks.len() * KV_BLOCK_TOKENS < end {
        return Some(format!("{} KV blocks do not reach position {end}", segment.blocks.len()));
    }
    if let Some(block) = segment.blocks.iter().find(|block| **block as usize >= limits.kv_blocks) {
        return Some(format!("KV block {block} of {}", limits.kv_blocks));
    }
    segment
        .tokens
        .iter()
        .find(|id| **id as usize >= config.vocab_size)
        .map(|id| format!("token {id} is outside the vocabulary of {}", config.vocab_size))
}

#[cfg(test)]
mod tests;
