//! `pocketd bench prefill`: what a prefill call costs on this machine.

use indicatif::{ProgressBar, ProgressStyle};
use pocket_bench::arms::control::{MERGE_FLAG, SKIP_FLAG};
use pocket_bench::arms::{Fleet, Launch};
use pocket_bench::prefill::{self, Facts, Limits, Measured, Plan, Prefill, Progress, Wish};
use pocket_bench::record::{Kind, Record};
use pocket_config::Settings;

use super::own::Stop;
use super::work::Work;
use super::{arms, own, roofline};
use crate::boot::{self, Boot};
use crate::cli::PrefillArgs;
use crate::failure::bad_input;

/// Tokens of each decode measurement, and seconds that each of the machine's limits is measured, before
/// and after.
const THOROUGH: (usize, f64) = (32, 2.0);
/// The same for a quick look.
const QUICK: (usize, f64) = (8, 0.3);

/// Settings that follow from the prompts.
const CHOSEN: [&str; 5] =
    ["max_model_len", "max_num_batched_tokens", "max_merged_rows", "max_num_seqs", "max_queue"];

/// Measures, fits, predicts, compares and shows.
pub fn run(settings: &Settings, args: &PrefillArgs) -> anyhow::Result<()> {
    own::make_room(args.keep.result_dir.as_deref())?;
    let why = "cannot be given here: bench prefill chooses it for each of its servers";
    arms::refuse_chosen(&args.settings.sources(), &CHOSEN, why)?;
    let base = arms::base(settings)?;
    refuse_own_flags(&base)?;
    let boot = boot::prepare_to_serve(settings)?;
    let (decode_tokens, limit_seconds) = if args.quick { QUICK } else { THOROUGH };
    let wish = Wish {
        lengths: args.lengths(),
        wave: args.wave,
        repeats: args.repeats(),
        decode_tokens,
        control: !args.no_control,
    };
    // Of the split as it is, also where nobody said which.
    let (world, threads) = (boot.options.world, boot.options.threads_per_rank);
    let base = base.setting("tensor_parallel_size", world).setting("threads_per_rank", threads);
    let plan = Plan::new(&wish, &base).map_err(bad_input)?;
    let most = boot.config.max_position_embeddings;
    if plan.context > most {
        return Err(bad_input(format!(
            "--lengths and --wave need {} positions; the model has {most}",
            plan.context
        )));
    }
    let facts = facts(&boot)?;
    let (seed, command) = arms::seeded(args.seed);
    let begun = Record::new(Kind::Prefill, vec![command], ());

    let alone = arms::crowd_memory(&boot, plan.arms.len());
    let before = roofline::measure_limits(world * threads, limit_seconds)?;
    let (measured, interrupted) = own::block_on(async |stop| {
        let mut fleet = Fleet::new(alone);
        let outcome = measure(&plan, &mut fleet, facts.vocab_size, seed, &stop).await;
        let stopped = fleet.stop_all().await;
        // What went wrong first is what matters.
        let measured = outcome?;
        stopped?;
        Ok(measured)
    })?;
    if measured.samples.is_empty() {
        return own::nothing(interrupted);
    }
    let after = match &interrupted {
        Some(_) => before,
        None => roofline::measure_limits(world * threads, limit_seconds)?,
    };

    let peak =
        if after.1.flops_per_second > before.1.flops_per_second { after.1 } else { before.1 };
    let limits = Limits {
        bandwidth: before.0.max(after.0),
        peak: peak.flops_per_second,
        peak_instructions: peak.instructions.to_owned(),
    };
    let outcome = Prefill::of(measured, plan.budget, facts, limits)?;
    let record = prefill::record(begun, outcome);
    let report = prefill::report(&record)?;
    own::show(&record, &report, &args.keep)?;
    own::end(&record, interrupted)
}

/// Flags whose values the measurement itself compares.
fn refuse_own_flags(base: &Launch) -> anyhow::Result<()> {
    let own = [MERGE_FLAG, SKIP_FLAG];
    match base.flags.iter().find(|(name, _)| own.contains(&name.as_str())) {
        Some((name, _)) => Err(bad_input(format!(
            "bench prefill compares the values of {name} on servers of its own; leave it unset"
        ))),
        None => Ok(()),
    }
}

fn facts(boot: &Boot) -> anyhow::Result<Facts> {
    let world = boot.options.world;
    let row = Work::of(&boot.config, world, 1, 0)?;
    let output = Work::of(&boot.config, world, 0, 1)?;
    Ok(Facts {
        model: boot.name.clone(),
        vocab_size: boot.config.vocab_size,
        tensor_parallel_size: world,
        threads_per_rank: boot.options.threads_per_rank,
        flops_per_row: row.flops as f64,
        flops_per_output: output.flops as f64,
        bytes_per_call: row.bytes as f64,
    })
}

async fn measure(
    plan: &Plan,
    fleet: &mut Fleet,
    vocab_size: usize,
    seed: u64,
    stop: &Stop,
) -> anyhow::Result<Measured> {
    let bar = bar((plan.repeats * plan.tasks.len()) as u64);
    let mut show = |progress: Progress<'_>| match progress {
        Progress::Loading { arm, share } => {
            bar.set_message(format!("loading {arm}: {:.0} %", share * 100.0));
        }
        Progress::Done { measured, what } => {
            bar.set_position(measured as u64);
            bar.set_message(what);
            let (rounds, left) = (measured / plan.tasks.len(), measured % plan.tasks.len());
            // A bar says it where there is a terminal.
            if left == 0 && bar.is_hidden() {
                tracing::info!(rounds, of = plan.repeats, "measured");
            }
        }
    };
    let measured = prefill::run(plan, fleet, vocab_size, seed, &mut show, stop.asked()).await;
    bar.finish_and_clear();
    Ok(measured?)
}

/// Shown on a terminal only.
pub fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}
