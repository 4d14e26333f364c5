//! `pocketd bench limit`: the largest slots and context that start.

use std::time::Duration;

use pocket_bench::limit::{self, Find, Starter};
use pocket_bench::record::{Kind, Record, this_command};
use pocket_config::Settings;

use super::arms;
use super::own;
use crate::cli::LimitArgs;
use crate::failure::bad_input;

/// Looks for the limits and prints them.
pub fn run(settings: &Settings, args: &LimitArgs) -> anyhow::Result<()> {
    own::make_room(args.result_dir.as_deref())?;
    let sources = args.settings.sources();
    for (key, instead) in [("max_num_seqs", "--slots"), ("max_model_len", "--contexts")] {
        if sources.command_line.iter().any(|(given, _)| *given == key) {
            let option = key.replace('_', "-");
            return Err(bad_input(format!("--{option} is what is looked for; use {instead}")));
        }
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
    let (limits, _) = own::block_on(async |stop| {
        tokio::select! {
            limits = find.run(&starter, |ceiling| tracing::info!(
                slots = ceiling.slots,
                context = ceiling.context,
                plans = ceiling.plans,
                "found a limit"
            )) => Ok(limits?),
            // A server that is being started is killed, and its ranks go with it.
            signal = stop.asked() => Err(signal.into()),
        }
    })?;
    limits.judge(&mut record);
    let record = record.map(|()| limits);
    let report = limit::report(&record);
    own::show(&record, &report, args.json, args.result_dir.as_deref())?;
    own::end(&record, None)
}
