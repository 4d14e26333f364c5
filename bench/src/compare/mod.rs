//! Two records of the same kind beside each other.
//!
//! Quantities are found by their form, not by their kind of record: repeats behind a median, a mean with its
//! standard deviation and count (a [`Summary`](crate::stats::Summary), or `mean_X`, `std_X` and `completed` as
//! `vllm bench serve` writes them), a value with a standard error or an interval, or a plain number. Each becomes
//! the ratio B / A, with an interval where the records hold enough for one. What describes the work rather than
//! its outcome ([`WORKLOAD`]), the machines and the servers are compared for equality, and every difference is a
//! warning.

mod context;
mod quantity;
mod show;
mod walk;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::record::{InvalidRecord, Kind, Record};

pub use quantity::{Basis, Quantity};
pub use walk::WORKLOAD;

/// Two records beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What both measured.
    pub kind: Kind,
    /// When the first was measured, RFC 3339.
    pub time_a: String,
    /// When the second was measured, RFC 3339.
    pub time_b: String,
    /// What should be equal and is not, and what speaks against either record.
    pub warnings: Vec<String>,
    /// Everything that both have.
    pub quantities: Vec<Quantity>,
}

/// Why two records cannot be compared.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CompareError {
    /// They measured different things.
    #[error("a record of {} and a record of {} have nothing to compare", .a.name(), .b.name())]
    Kinds {
        /// Kind of the first.
        a: Kind,
        /// Kind of the second.
        b: Kind,
    },
    /// One cannot be believed.
    #[error("record {which}: {invalid}; --allow-invalid compares it all the same")]
    Invalid {
        /// `A` or `B`.
        which: char,
        /// Why not.
        invalid: InvalidRecord,
    },
    /// They have no quantity in common.
    #[error("the two records have no quantity in common")]
    Nothing,
}

/// Compares two records of the same kind.
pub fn compare(
    a: &Record<Value>,
    b: &Record<Value>,
    allow_invalid: bool,
) -> Result<Comparison, CompareError> {
    if a.kind != b.kind {
        return Err(CompareError::Kinds { a: a.kind, b: b.kind });
    }
    let mut warnings = Vec::new();
    for (which, record) in [('A', a), ('B', b)] {
        match record.verdict() {
            Ok(()) => {}
            Err(invalid) if allow_invalid => warnings.push(format!("record {which}: {invalid}")),
            Err(invalid) => return Err(CompareError::Invalid { which, invalid }),
        }
    }
    warnings.extend(context::differences(a, b));
    let mut found = walk::Found::default();
    found.walk("", &a.result, &b.result);
    if found.quantities.is_empty() {
        return Err(CompareError::Nothing);
    }
    warnings.extend(found.warnings);
    for (which, record) in [('A', a), ('B', b)] {
        let count = |key: &str| record.result.get(key).and_then(Value::as_u64).unwrap_or_default();
        let failed = count("failed");
        if failed > 0 {
            let all = failed + count("completed");
            warnings.push(format!(
                "{failed} of {all} requests of {which} failed; the times are those of the others"
            ));
        }
    }
    Ok(Comparison {
        kind: a.kind,
        time_a: a.time.clone(),
        time_b: b.time.clone(),
        warnings,
        quantities: found.quantities,
    })
}

#[cfg(test)]
mod tests;
