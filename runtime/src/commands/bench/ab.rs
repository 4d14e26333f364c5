//! `pocketd bench ab`: two servers that differ in what they were started with, in turn.

use pocket_bench::ab::{self, Ab, Arm, Workload};
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
    own::make_room(args.result_dir.as_deref())?;
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
    let (record, interrupted): (Record<Ab>, _) = own::block_on(async |stop| {
        let mut fleet = Fleet::new(alone);
        let bar = bar(2 * args.pairs as u64);
        let mut told = |done: usize| bar.set_position(done as u64);
        let compared = ab::run(begun, &both, names, workload, &mut fleet, &mut prompts, &mut told);
        let outcome = tokio::select! {
            compared = compared => compared.map_err(anyhow::Error::from),
            signal = stop.asked() => Err(signal.into()),
        };
        let stopped = fleet.stop_all().await;
        // What went wrong first is what matters.
        let record = outcome?;
        stopped?;
        Ok(record)
    })?;
    let report = ab::report(&record)?;
    own::show(&record, &report, args.json, args.result_dir.as_deref())?;
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
    let mut base = arms::base(settings)?;
    if settings.max_num_seqs.is_none() {
        base = base.setting("max_num_seqs", args.requests);
    }
    if settings.max_model_len.is_none() {
        base = base.setting("max_model_len", args.prompt_tokens + args.output_tokens);
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
