//! `pocketd bench ab`: two servers that differ in what they were started with, in turn.

use pocket_bench::ab::{self, AbError, Arm, Plan, Workload};
use pocket_bench::arms::wave::MOST_PROMPTS;
use pocket_bench::arms::{Act, Control, Fleet, Launch, RandomPrompts};
use pocket_bench::record::{Kind, Record};
use pocket_config::Settings;

use super::prefill::bar;
use super::{arms, own};
use crate::boot;
use crate::cli::AbArgs;
use crate::failure::bad_input;

/// Offers both the same waves, compares and shows.
pub fn run(settings: &Settings, args: &AbArgs) -> anyhow::Result<()> {
    own::make_room(args.keep.result_dir.as_deref())?;
    let base = common(settings, args)?;
    let both = [arm(&base, "A", &args.a, args, 0)?, arm(&base, "B", &args.b, args, 1)?];
    let names = [named(&args.a), named(&args.b)];
    let boot = boot::prepare_to_serve(settings)?;
    let workload = Workload {
        prompts: args.requests,
        prompt_tokens: args.prompt_tokens,
        output_tokens: args.output_tokens,
        pairs: args.pairs,
    };
    let (seed, command) = arms::seeded(args.seed);
    let begun = Record::new(Kind::Ab, vec![command], ());
    let mut prompts = RandomPrompts::new(boot.config.vocab_size, seed);
    let alone = arms::crowd_memory(&boot, both.len());
    let plan = Plan { arms: &both, names, workload };
    let (record, interrupted) = own::block_on(async |stop| {
        let mut fleet = Fleet::new(alone);
        let bar = bar(2 * args.pairs as u64);
        let mut told = |done: usize| {
            bar.set_position(done as u64);
            // A bar says it where there is a terminal.
            if done.is_multiple_of(2) && bar.is_hidden() {
                tracing::info!(pairs = done / 2, of = args.pairs, "measured");
            }
        };
        let compared =
            ab::run(begun, plan, &mut fleet, &mut prompts, &mut told, stop.asked()).await;
        bar.finish_and_clear();
        let stopped = fleet.stop_all().await;
        let record = match compared {
            Ok(record) => Some(record),
            Err(AbError::Interrupted) => None,
            // What went wrong first is what matters.
            Err(AbError::Arm(error)) => return Err(error.into()),
            Err(error) => return Err(error.into()),
        };
        stopped?;
        Ok(record)
    })?;
    let Some(record) = record else { return own::nothing(interrupted) };
    let report = ab::report(&record)?;
    own::show(&record, &report, &args.keep)?;
    own::end(&record, interrupted)
}

/// What both are started with: room for the wave where nobody has asked for less.
fn common(settings: &Settings, args: &AbArgs) -> anyhow::Result<Launch> {
    if args.requests > MOST_PROMPTS {
        return Err(bad_input(format!(
            "--requests {}: they go in one request, which has {MOST_PROMPTS} prompts at most",
            args.requests
        )));
    }
    let context = args.prompt_tokens + args.output_tokens;
    let mut base = arms::base(settings)?;
    if settings.max_num_seqs.is_none() {
        base = base.setting("max_num_seqs", args.requests);
    }
    if settings.max_model_len.is_none() {
        base = base.setting("max_model_len", context);
    }
    Ok(base.setting("max_queue", args.requests.max(settings.max_queue.get())))
}

fn arm(
    base: &Launch,
    name: &str,
    given: &[(String, String)],
    args: &AbArgs,
    number: usize,
) -> anyhow::Result<Arm> {
    let mut launch = base.named(name);
    for (key, value) in given {
        launch = arms::with(launch, key, value)?;
    }
    for (at, (key, _)) in given.iter().enumerate() {
        if given[..at].iter().any(|(earlier, _)| earlier == key) {
            return Err(bad_input(format!("{name} is given {key} twice; keep one of them")));
        }
    }
    let context = args.prompt_tokens + args.output_tokens;
    let room = launch.settings.iter().find(|(key, _)| key == "max_model_len");
    if let Some((_, room)) = room.filter(|(_, room)| room.parse().is_ok_and(|n: usize| n < context))
    {
        return Err(bad_input(format!(
            "--prompt-tokens {} and --output-tokens {} need {context} positions; max_model_len of {name} is \
             {room}",
            args.prompt_tokens, args.output_tokens,
        )));
    }
    let of_arm =
        |all: &[crate::cli::OfArm], act: fn(String) -> Act, option: &str| -> Vec<Control> {
            let its = all.iter().filter(|wish| wish.arm == number);
            its.map(|wish| Control {
                cause: format!("{option} {}:{}", name.to_lowercase(), wish.name),
                act: act(wish.name.clone()),
            })
            .collect()
        };
    let mut controls = of_arm(&args.must_rise, Act::Rises, "--must-rise");
    controls.extend(of_arm(&args.must_stay, Act::Stays, "--must-stay"));
    Ok(Arm { launch, controls })
}

fn named(given: &[(String, String)]) -> Vec<String> {
    given.iter().map(|(key, value)| format!("{key}={value}")).collect()
}
