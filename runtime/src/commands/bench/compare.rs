//! `pocketd bench compare`: ratios of everything that two records of the same kind have in common.

use std::io::Write;

use pocket_bench::compare::{CompareError, compare};
use pocket_bench::record::Record;
use serde_json::Value;

use crate::cli::CompareArgs;
use crate::commands::output::{print_json, stdout};
use crate::failure::bad_input_of;

/// Reads both and prints the ratios.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let a: Record<Value> = Record::read(&args.a).map_err(bad_input_of)?;
    let b: Record<Value> = Record::read(&args.b).map_err(bad_input_of)?;
    let comparison = compare(&a, &b, args.allow_invalid).map_err(|error| match error {
        CompareError::Invalid { which, invalid } => anyhow::Error::from(invalid)
            .context(format!("record {which} (--allow-invalid compares it all the same)")),
        other => bad_input_of(other),
    })?;
    if args.json {
        return print_json(&comparison);
    }
    let mut out = stdout();
    write!(out, "{}", comparison.report().text())?;
    Ok(out.flush()?)
}
