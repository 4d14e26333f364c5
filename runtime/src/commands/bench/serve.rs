//! `pocketd bench serve`: a load on any server of OpenAI's API, measured as `vllm bench serve` does.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use pocket_bench::load::{
    self, Arrivals, Backend, CustomSet, Lengths, LoadError, RandomSet, Session, ShareGptSet,
    Target, TextCodec, Told, Workload,
};
use pocket_bench::record::Record;
use pocket_model::tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::{arms, own};
use crate::cli::values;
use crate::cli::{BackendName, DatasetName, ResultArgs, ServeBenchArgs, TargetArgs, WorkloadArgs};
use crate::commands::output::{print_json, stdout};
use crate::failure::bad_input;

/// Measures, prints, and saves what is to be saved, also of a run that was interrupted.
pub fn run(args: &ServeBenchArgs) -> anyhow::Result<()> {
    let here = args.result.save_result.then_some(Path::new("."));
    own::make_room(args.result.result_dir.as_deref().or(here))?;
    if let Some(file) = args.result.json_out.as_deref().filter(|file| *file != Path::new("-")) {
        own::make_room_for("--json-out", file)?;
    }
    // Prompts of an earlier run may still be in a prefix cache.
    let (seed, reproduce) = arms::seeded(args.workload.seed);
    let session = session(args, seed)?;
    let (report, interrupted) = own::block_on(async |stop| {
        session.run(vec![reproduce], stop.asked()).await.map_err(usage)
    })?;
    // What was measured is printed first: a disk that is full does not take it away.
    show(&args.result, &report)?;
    let saved = save(&args.result, &report)?;
    if !is_for_programs(&args.result) {
        let mut out = stdout();
        for path in saved {
            writeln!(out, "saved: {}", path.display())?;
        }
        out.flush()?;
    }
    own::end(&report.record, interrupted)
}

/// What was asked for cannot be, or the server does not do its part.
pub(super) fn usage(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Server { .. } | LoadError::Client(_) | LoadError::Tokens(_) => error.into(),
        LoadError::Arrivals { .. } | LoadError::Lengths(_) | LoadError::DataSet { .. } => {
            bad_input(error.to_string())
        }
    }
}

/// What a request may take when nobody says: as long as `vllm bench serve` gives it.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

fn session(args: &ServeBenchArgs, seed: u64) -> anyhow::Result<Session> {
    let ServeBenchArgs { target, workload, traffic, result } = args;
    let random = workload.dataset_name == DatasetName::Random;
    Ok(Session {
        target: whom(target, random)?,
        tokenizer: workload.tokenizer.as_deref().map(tokenizer).transpose()?,
        ask_server_tokens: !workload.skip_tokenizer_init,
        workload: what(workload)?,
        num_prompts: workload.num_prompts,
        num_warmups: traffic.num_warmups,
        arrivals: Arrivals::new(traffic.request_rate, traffic.burstiness).map_err(usage)?,
        max_concurrency: traffic.max_concurrency,
        seed,
        slo: values::slo(&result.goodput),
        metrics: result.percentile_metrics.0.clone(),
        percents: result.metric_percentiles.0.clone(),
        detailed: result.save_detailed,
        label: result.label.clone(),
        metadata: result.metadata.clone(),
        quiet: result.disable_tqdm,
    })
}

fn whom(args: &TargetArgs, random: bool) -> anyhow::Result<Target> {
    let backend = match args.backend {
        BackendName::Openai => Backend::Completions,
        BackendName::OpenaiChat => Backend::Chat,
    };
    let mut headers = HeaderMap::new();
    if let Some(key) = &args.api_key {
        let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| bad_input("--api-key: the key has characters that no header can have"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in &args.header {
        let bad = |error: String| bad_input(format!("--header {name}: {error}"));
        let name = HeaderName::try_from(name).map_err(|error| bad(error.to_string()))?;
        headers.insert(name, HeaderValue::from_str(value).map_err(|e| bad(e.to_string()))?);
    }
    let extra_body = args.extra_body.clone().map(|object| object.0).unwrap_or_default();
    if extra_body.get("n").is_some_and(|n| *n != json!(1)) {
        return Err(bad_input("--extra-body: n is not 1; one answer a request can be timed"));
    }
    Ok(Target {
        base_url: args.base_url.clone(),
        endpoint: args.endpoint.clone().unwrap_or_else(|| backend.path().to_owned()),
        backend,
        model: args.model.clone(),
        headers,
        extra_body,
        ignore_eos: args.ignore_eos || random,
        timeout: match args.request_timeout {
            None => REQUEST_TIMEOUT,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|error| bad_input(format!("--request-timeout: {error}")))?,
        },
    })
}

fn what(args: &WorkloadArgs) -> anyhow::Result<Workload> {
    let path = || {
        args.dataset_path.clone().ok_or_else(|| {
            bad_input("--dataset-path is missing: the file of the sharegpt or the custom data set")
        })
    };
    Ok(match args.dataset_name {
        DatasetName::Random => {
            if args.dataset_path.is_some() {
                return Err(bad_input(
                    "--dataset-path goes with --dataset-name sharegpt or custom; random needs no file",
                ));
            }
            let ratio = args.random_range_ratio;
            Workload::Random(RandomSet {
                prefix: args.random_prefix_len,
                input: Lengths::around(args.random_input_len, ratio).map_err(usage)?,
                output: Lengths::around(args.random_output_len, ratio).map_err(usage)?,
            })
        }
        DatasetName::Sharegpt => Workload::ShareGpt(ShareGptSet {
            path: path()?,
            output_tokens: args.sharegpt_output_len,
        }),
        DatasetName::Custom => {
            Workload::Custom(CustomSet { path: path()?, output_tokens: args.custom_output_len })
        }
    })
}

/// A checkpoint's tokenizer.
struct Codec(Tokenizer);

impl TextCodec for Codec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.0.encode(text, false).map_err(|error| error.to_string())
    }

    fn ordinary(&self) -> Vec<u32> {
        let ids = 0..u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        ids.filter(|id| !self.0.is_special(*id) && !self.0.token_bytes(*id).is_empty()).collect()
    }
}

fn tokenizer(path: &Path) -> anyhow::Result<(String, Arc<dyn TextCodec>)> {
    let file = if path.is_dir() { path.join(TOKENIZER_FILE) } else { path.to_owned() };
    let bytes = fs::read(&file)
        .map_err(|error| bad_input(format!("--tokenizer {}: {error}", file.display())))?;
    let config = match fs::read(file.with_file_name(TOKENIZER_CONFIG_FILE)) {
        Ok(config) => Some(config),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(bad_input(format!("--tokenizer {}: {error}", path.display()))),
    };
    // How many embeddings the model has is for its server to say.
    let tokenizer = Tokenizer::from_bytes(&bytes, config.as_deref(), usize::MAX)
        .map_err(|error| bad_input(format!("--tokenizer {}: {error}", path.display())))?;
    Ok((path.display().to_string(), Arc::new(Codec(tokenizer))))
}

/// The result as `vllm bench serve` would save it, with the record beside it.
fn flat(report: &Told) -> anyhow::Result<Map<String, Value>> {
    let record: Record<()> = report.record.clone().map(|_| ());
    let mut result = report.record.result.clone();
    result.insert("notes".into(), json!(report.notes));
    result.insert("record".into(), serde_json::to_value(record)?);
    Ok(result)
}

/// Writes the files that are asked for; says where they are.
fn save(args: &ResultArgs, report: &Told) -> anyhow::Result<Vec<PathBuf>> {
    let mut saved = Vec::new();
    if args.save_result {
        let directory = args.result_dir.clone().unwrap_or_default();
        let name = args.result_filename.clone().unwrap_or_else(|| name_of(&report.record.result));
        saved.push(write(&directory.join(name), &flat(report)?)?);
    }
    if let Some(directory) = &args.result_dir {
        saved.push(report.record.write(directory)?);
        let page = load::report(&report.record, &report.measured, &report.notes)?;
        saved.push(page.write(directory)?);
    }
    if let Some(path) = args.json_out.as_deref().filter(|path| *path != Path::new("-")) {
        saved.push(write(path, &flat(report)?)?);
    }
    Ok(saved)
}

fn write(path: &Path, result: &Map<String, Value>) -> anyhow::Result<PathBuf> {
    let writing = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(writing)?;
    }
    fs::write(path, serde_json::to_string(result)? + "\n").with_context(writing)?;
    Ok(path.to_owned())
}

/// As vLLM names such files: `openai-infqps-concurrency8-demo-20260131-235901.json`.
fn name_of(result: &Map<String, Value>) -> PathBuf {
    let text = |name: &str| match &result[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let label = if result["label"].is_null() { "backend" } else { "label" };
    let concurrency = match &result["max_concurrency"] {
        Value::Null => String::new(),
        most => format!("-concurrency{most}"),
    };
    let model = text("model_id");
    let model = model.rsplit('/').next().unwrap_or_default();
    let (rate, date) = (text("request_rate"), text("date"));
    // A label is no path.
    let label = text(label).replace('/', "-");
    format!("{label}-{rate}qps{concurrency}-{model}-{date}.json").into()
}

/// Whether the result on standard output is JSON.
fn is_for_programs(args: &ResultArgs) -> bool {
    args.json || args.json_out.as_deref() == Some(Path::new("-"))
}

fn show(args: &ResultArgs, report: &Told) -> anyhow::Result<()> {
    if is_for_programs(args) {
        print_json(&flat(report)?)?;
    } else {
        let mut out = stdout();
        write!(out, "{}", report.measured.table(&args.percentile_metrics.0))?;
        for note in &report.notes {
            writeln!(out, "note: {note}")?;
        }
        writeln!(out, "seed: {}", report.record.result["seed"])?;
        out.flush()?;
    }
    Ok(())
}
