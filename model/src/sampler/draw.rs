//! Drawing a token with a probability in proportion to its weight.

use super::exp::exp;
use super::select::Cut;

/// Tokens whose weights are summed together; only the chosen block is walked token by token.
const BLOCK: usize = 256;

/// The weights of one block of `logits` starting at token `first_id`: `e^((l - max) / temperature)`
/// for the tokens that are kept, 0 for the rest. Returns their sum, added in a fixed order.
fn weigh(
    logits: &[f32],
    first_id: u32,
    max: f32,
    temperature: f32,
    cut: Cut,
    weights: &mut [f32; BLOCK],
) -> f64 {
    for ((weight, &logit), id) in weights.iter_mut().zip(logits).zip(first_id..) {
        let kept = exp((logit - max) / temperature);
        *weight = if cut.keeps(logit, id) { kept } else { 0.0 };
    }
    weights[..logits.len()].iter().map(|&weight| f64::from(weight)).sum()
}

/// The token at `uniform` (0 to 1) of the way through the kept tokens' weights, in id order.
///
/// `max` is the row's largest logit, which is finite and kept.
pub(super) fn draw(logits: &[f32], max: f32, temperature: f32, cut: Cut, uniform: f64) -> u32 {
    let mut weights = [0.0; BLOCK];
    let sums: Vec<f64> = logits
        .chunks(BLOCK)
        .zip((0..).step_by(BLOCK))
        .map(|(block, first)| weigh(block, first, max, temperature, cut, &mut weights))
        .collect();

    let mut left = uniform * sums.iter().sum::<f64>();
    // Rounding may carry `left` past the end; the last token of any weight then stands in.
    let mut chosen = 0;
    for (index, &sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        chosen = index;
        if left < sum {
            break;
        }
        left -= sum;
    }
    let first = chosen * BLOCK;
    let block = &logits[first..logits.len().min(first + BLOCK)];
    weigh(block, first as u32, max, temperature, cut, &mut weights);
    let mut token = first;
    for (offset, &weight) in weights[..block.len()].iter().enumerate().filter(|(_, w)| **w > 0.0) {
        token = first + offset;
        if left < f64::from(weight) {
            break;
        }
        left -= f64::from(weight);
    }
    token as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_the_weights_in_id_order() {
        // Weights 1/2, 1/4, 1/4 over three blocks' distance.
        let mut logits = vec![f32::NEG_INFINITY; 3 * BLOCK];
        logits[3] = 0.0;
        logits[BLOCK + 7] = -std::f32::consts::LN_2;
        logits[3 * BLOCK - 1] = -std::f32::consts::LN_2;
        let at = |uniform| draw(&logits, 0.0, 1.0, Cut::NOTHING, uniform);
        assert_eq!(at(0.0), 3);
        assert_eq!(at(0.499), 3);
        assert_eq!(at(0.501), BLOCK as u32 + 7);
        assert_eq!(at(0.749), BLOCK as u32 + 7);
        assert_eq!(at(0.751), 3 * BLOCK as u32 - 1);
        assert_eq!(at(1.0), 3 * BLOCK as u32 - 1);
    }

    #[test]
    fn a_token_without_weight_is_never_drawn() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        for uniform in [0.0, 0.5, 1.0] {
            assert_eq!(draw(&logits, 0.0, 1.0, Cut::NOTHING, uniform), 1);
        }
    }
}
