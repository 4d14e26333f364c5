//! The record of a decomposition.

use super::outcome::Prefill;
use crate::arms::filled;
use crate::record::Record;

/// Fills a record that was made before the measurement.
pub fn record(begun: Record<()>, prefill: Prefill) -> Record<Prefill> {
    let measured = &prefill.measured;
    let waves = measured.samples.iter().map(|sample| &sample.wave);
    filled(begun, &measured.counts, waves, measured.invalid.clone()).map(|()| prefill)
}
