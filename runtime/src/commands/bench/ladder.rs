//! `pocketd bench ladder`: the same load at rising widths.

use pocket_bench::ladder::{self, Climb, Ladder};
use pocket_bench::load::{Backend, Target, first_model};
use pocket_bench::record::Record;
use pocket_config::Settings;
use reqwest::header::HeaderMap;
use serde_json::{Map, json};

use super::arms;
use super::own::{self, Stop};
use super::serve::{REQUEST_TIMEOUT, usage};
use crate::cli::LadderArgs;
use crate::failure::bad_input;

/// Climbs the ladder on a server of its own, or on one that runs.
pub fn run(settings: &Settings, args: &LadderArgs) -> anyhow::Result<()> {
    own::make_room(args.keep.result_dir.as_deref())?;
    let sources = args.settings.sources();
    if args.base_url.is_some() && !sources.command_line.is_empty() {
        return Err(bad_input(
            "--base-url measures a server that runs already; settings go to that server's own command",
        ));
    }
    let (record, interrupted) = own::block_on(async |stop| match &args.base_url {
        Some(url) => climb(args, url, &stop).await,
        None => {
            let launch = arms::base(settings)?.named("ladder");
            let widest = args.widths().last().copied().unwrap_or(1);
            let launch = match settings.max_num_seqs {
                None => arms::with(launch, "max_num_seqs", &widest.to_string())
                    .map_err(|error| bad_input(format!("a wave of {widest}: {error:#}")))?,
                Some(slots) if slots.get() >= widest => launch,
                Some(slots) => {
                    return Err(bad_input(format!(
                        "a wave of {widest} needs as many slots; --max-num-seqs is {}",
                        slots.get()
                    )));
                }
            };
            let given = launch.clone();
            let mut record =
                own::with_server(launch, &stop, async |url: &str| climb(args, url, &stop).await)
                    .await?;
            for server in &mut record.servers {
                let said = std::mem::take(&mut server.settings);
                // What the server says of itself holds.
                server.settings = given.settings_for_record().chain(said).collect();
            }
            Ok(record)
        }
    })?;
    if record.result.is_empty() && interrupted.is_some() {
        return own::nothing(interrupted);
    }
    let report = ladder::report(&record)?;
    own::show(&record, &report, &args.keep)?;
    own::end(&record, interrupted)
}

async fn climb(args: &LadderArgs, url: &str, stop: &Stop) -> anyhow::Result<Record<Ladder>> {
    let http = reqwest::Client::new();
    let model = match &args.served_model {
        Some(model) => model.clone(),
        None => first_model(&http, url, &HeaderMap::new()).await?.id,
    };
    let (seed, command) = arms::seeded(args.seed);
    let climb = Climb {
        target: Target {
            base_url: url.to_owned(),
            endpoint: Backend::Completions.path().to_owned(),
            backend: Backend::Completions,
            model: Some(model),
            headers: HeaderMap::new(),
            extra_body: Map::from_iter([("temperature".to_owned(), json!(0))]),
            ignore_eos: true,
            timeout: REQUEST_TIMEOUT,
        },
        widths: args.widths(),
        input_tokens: args.input_len,
        output_tokens: args.output_len,
        refills: args.refills,
        repeats: args.repeats,
        slo: args.slo(),
        seed,
        quiet: args.disable_tqdm,
    };
    climb.run(vec![command], stop.asked()).await.map_err(usage)
}
