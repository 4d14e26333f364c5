//! `pocketd generate`: one prompt, one answer.

use std::io::{self, Write};

use anyhow::Context;
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineCounters, Event, FinishReason, GenerateRequest, Timings};
use pocket_config::Settings;
use pocket_model::sampler::SamplingParams;
use serde::Serialize;

use super::engine;
use super::output::print_json;
use super::prompt;
use crate::boot::{self, Boot};
use crate::cli::GenerateArgs;
use crate::failure::bad_input;
use crate::http::SamplingDefaults;

/// Tokens of an answer when nothing is said, if they fit.
const DEFAULT_MAX_TOKENS: usize = 256;

/// An answer as programs read it.
#[derive(Serialize)]
struct Answer {
    prompt_ids: Vec<u32>,
    /// Generated tokens only.
    ids: Vec<u32>,
    text: String,
    finish_reason: FinishReason,
    timings: Timings,
    counters: EngineCounters,
}

/// Starts an engine, asks it, and prints the answer.
pub fn run(settings: &Settings, args: GenerateArgs) -> anyhow::Result<()> {
    let mut boot = boot::prepare(settings)?;
    let request = request(&boot, &args)?;
    boot.announce()?;
    let answer = engine::with_engine(boot, async |engine: EngineHandle| {
        if args.json {
            answer(&engine, request, &mut io::sink()).await
        } else {
            let answer = answer(&engine, request, &mut io::stdout()).await;
            // An answer that was cut short does not share its line with the reason.
            writeln!(io::stdout())?;
            answer
        }
    })?;
    let timings = &answer.timings;
    tracing::info!(
        prompt_tokens = timings.prompt_tokens,
        completion_tokens = timings.completion_tokens,
        finish_reason = ?answer.finish_reason,
        queue_ms = timings.queue_ms,
        prefill_ms = timings.prefill_ms,
        decode_ms = timings.decode_ms,
        forward_calls = answer.counters.forward_passes,
        "answered"
    );
    if args.json { print_json(&answer) } else { Ok(()) }
}

/// Checks what was asked before anything is loaded.
fn request(boot: &Boot, args: &GenerateArgs) -> anyhow::Result<GenerateRequest> {
    let prompt = match (&args.prompt.ids, &args.prompt.text) {
        (Some(ids), _) => ids.0.clone(),
        (None, Some(text)) if args.raw => prompt::of_text(boot, text)?,
        (None, Some(text)) => prompt::of_message(boot, text)?,
        (None, None) => return Err(bad_input("there is no prompt")),
    };
    let room = prompt::room(boot, "prompt", &prompt)?;
    if room == 0 {
        return Err(bad_input(format!(
            "the prompt has {} tokens and the context {} (--max-model-len): no token of an answer fits",
            prompt.len(),
            boot.options.max_model_len
        )));
    }
    let max_tokens = match args.max_tokens {
        Some(asked) if asked > room => {
            return Err(bad_input(format!(
                "--max-tokens {asked}: after a prompt of {} tokens at most {room} fit the context of \
                 {} (--max-model-len)",
                prompt.len(),
                boot.options.max_model_len
            )));
        }
        Some(asked) => asked,
        None => DEFAULT_MAX_TOKENS.min(room),
    };
    Ok(GenerateRequest {
        sampling: sampling(&SamplingDefaults::of(&boot.generation), args)?,
        max_tokens: Some(max_tokens),
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        ..GenerateRequest::greedy("generate", prompt)
    })
}

fn sampling(defaults: &SamplingDefaults, args: &GenerateArgs) -> anyhow::Result<SamplingParams> {
    let params = SamplingParams {
        temperature: args.temperature.unwrap_or(defaults.temperature),
        top_p: args.top_p.unwrap_or(defaults.top_p),
        top_k: args.top_k.unwrap_or(defaults.top_k),
        min_p: args.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(0.0),
        frequency_penalty: args.frequency_penalty.unwrap_or(0.0),
        seed: args.seed,
        ..SamplingParams::default()
    };
    params.validate().map_err(|error| bad_input(error.to_string()))?;
    Ok(params)
}

/// Runs the request and writes its text to `out` as it comes.
async fn answer(
    engine: &EngineHandle,
    request: GenerateRequest,
    out: &mut impl Write,
) -> anyhow::Result<Answer> {
    let prompt_ids = request.prompt.clone();
    let mut events = engine.submit(request).await?;
    let (mut ids, mut text, mut finish_reason) = (Vec::new(), String::new(), None);
    while let Some(event) = events.next().await {
        match event {
            // Nobody asked for it.
            Event::Prompt { .. } => {}
            Event::Token { id, text: piece, .. } => {
                ids.push(id);
                show(out, &piece)?;
                text.push_str(&piece);
            }
            Event::Ended { reason, text: rest, .. } => {
                show(out, &rest)?;
                text.push_str(&rest);
                finish_reason = Some(reason);
            }
            Event::Finished { timings, counters } => {
                let finish_reason = finish_reason.context("the engine did not end the answer")?;
                return Ok(Answer { prompt_ids, ids, text, finish_reason, timings, counters });
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Err(anyhow::anyhow!("the engine ended in the middle of the answer"))
}

fn show(out: &mut impl Write, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    out.write_all(text.as_bytes())?;
    out.flush()
}
