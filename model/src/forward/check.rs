//! Whether a step fits what a rank was loaded for. The coordinator is trusted to plan well; a mistake
//! of its must still come out as an error, not as another sequence's state overwritten.

use std::collections::HashSet;

use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};

use super::ForwardError;
use super::rank_model::ModelLimits;
use super::step::{Step, StepSegment, Want};
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
    let mut blocks = HashSet::new();
    for segment in &step.segments {
        if let Some(detail) = segment_fault(segment, config, limits) {
            return refuse(format!("segment of slot {}: {detail}", segment.slot));
        }
        if !slots.insert(segment.slot) {
            return refuse(format!("slot {} has two segments", segment.slot));
        }
        if let Some(block) = segment.blocks.iter().find(|block| !blocks.insert(**block)) {
            return refuse(format!("KV block {block} is given twice"));
        }
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
