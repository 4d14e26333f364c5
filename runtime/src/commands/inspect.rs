//! `pocketd inspect`: what a checkpoint holds and what it would take.

use std::io::Write;

use pocket_actors::api::ModelSource;
use pocket_config::Settings;
use pocket_model::Checkpoint;
use pocket_model::inspect::Inspection;

use super::output::{print_json, stdout};
use crate::boot;
use crate::cli::InspectArgs;
use crate::failure::bad_input;

/// Prints the report; a checkpoint that could not be loaded is an error after it.
pub fn run(settings: &Settings, args: &InspectArgs) -> anyhow::Result<()> {
    let configured = settings.model.as_ref().map(|model| model.as_str());
    let source = boot::find(args.directory.as_deref().or(configured))?;
    let checkpoint = match &source.model {
        ModelSource::Demo => Checkpoint::demo()?,
        // Faults are what a report is for; opening would stop at the first.
        ModelSource::Directory(directory) => Checkpoint::survey(directory)?,
    };
    // Without a size the whole model: a report should not depend on the machine it is made on.
    let world = settings.tensor_parallel_size.map_or(1, |world| world.get());
    let report = Inspection::new(&checkpoint, world, pocket_device::cpu::packed_bytes)?;
    if args.json {
        print_json(&report)?;
    } else {
        let mut out = stdout();
        writeln!(out, "{report}")?;
        out.flush()?;
    }
    match report.tensors.faults.split_first() {
        None => Ok(()),
        Some((first, others)) => Err(bad_input(format!(
            "{} cannot be loaded: {first}{}",
            report.checkpoint,
            match others.len() {
                0 => String::new(),
                more => format!(" (and {more} more faults, listed in the report)"),
            }
        ))),
    }
}
