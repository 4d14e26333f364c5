//! `pocketd bench limit`: the largest slots and context that start.

use std::time::Duration;

use pocket_bench::limit::{self, Ceiling, Find, Starter};
use pocket_bench::record::{Kind, Record, this_command};
use pocket_config::Settings;

use super::arms;
use super::own;
use crate::cli::LimitArgs;
use crate::failure::bad_input;

/// Looks for the limits and prints them.
pub fn run(settings: &Settings, args: &LimitArgs) -> anyhow::Result<()> {
    own::make_room(args.keep.result_dir.as_deref())?;
    let sources = args.settings.sources();
    for (key, instead) in [("max_num_seqs", "--slots"), ("max_model_len", "--contexts")] {
        let why = format!("is what is looked for; use {instead}");
        arms::refuse_chosen(&sources, &[key], &why)?;
    }
    let mut launch = arms::base(settings)?;
    launch.load_limit = Duration::try_from_secs_f64(args.load_limit)
        .map_err(|error| bad_input(format!("--load-limit: {error}")))?;
    let starter = Starter { launch };
    let find = Find {
        slots: args.slots.0.clone(),
        contexts: args.contexts.clone().map(|contexts| contexts.0).unwrap_or_default(),
    };
    let mut record = Record::new(Kind::Limit, vec![this_command()], ());
    let (mut limits, interrupted) = own::block_on(async |stop| {
        let told = |ceiling: &Ceiling| {
            tracing::info!(
                slots = ceiling.slots,
                context = ceiling.context,
                plans = ceiling.plans,
                "found a limit"
            );
        };
        Ok(find.run(&starter, told, stop.asked()).await?)
    })?;
    if limits.ceilings.is_empty() {
        return own::nothing(interrupted);
    }
    record.servers = std::mem::take(&mut limits.servers);
    limits.judge(&mut record);
    let record = record.map(|()| limits);
    let report = limit::report(&record);
    own::show(&record, &report, &args.keep)?;
    own::end(&record, interrupted)
}
