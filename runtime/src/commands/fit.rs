//! `pocketd fit`: what a call and a token cost, from a file of measured points.

use std::io::Write;

use anyhow::Context;
use pocket_bench::fit::{Outcome, Questions};
use pocket_bench::law::{Bimodal, FirstTokens, Law, Wave};
use pocket_bench::points::{self, Found, Selection};
use pocket_bench::record::{Kind, Record, this_command};
use pocket_bench::report::Report;
use pocket_bench::stats::Weighting;
use serde_json::Value;

use super::bench::own;
use super::output::{print_json, stdout};
use crate::cli::{FitArgs, WaveReading, Weights};
use crate::failure::{bad_input, bad_input_of};

/// Fits, predicts and prints.
pub fn run(args: &FitArgs) -> anyhow::Result<()> {
    own::make_room(args.result_dir.as_deref())?;
    let invalid = args.file.as_deref().and_then(|file| {
        // Most files are no records.
        Record::<Value>::read(file).ok()?.verdict().err()
    });
    if let Some(invalid) = invalid.clone().filter(|_| !args.allow_invalid) {
        return Err(anyhow::Error::from(invalid).context("--allow-invalid fits it all the same"));
    }
    let found = args.file.as_deref().map(|file| {
        let selection =
            Selection { tables: args.table.clone(), ttft_column: args.ttft_column.clone() };
        points::read(file, &selection).map_err(bad_input_of)
    });
    let found = found.transpose()?;
    let questions = questions(args, found.as_ref())?;
    let outcome = match &found {
        Some(Found { points, tables, ttft_column, .. }) => {
            let file = args.file.as_deref().unwrap_or_else(|| "".as_ref()).display();
            let source = format!(
                "{} points of {file} ({}), times from {ttft_column}",
                points.len(),
                tables.join(", ")
            );
            let weighting = match args.weights {
                Weights::Relative => Weighting::Relative,
                Weights::Ordinary => Weighting::Ordinary,
            };
            Outcome::of_points(source, points, weighting, &questions).map_err(bad_input_of)?
        }
        None => Outcome::of_law(given(args), &questions),
    };
    let record = Record::new(Kind::Fit, vec![this_command()], outcome);
    let outcome = &record.result;
    let mut report = match args.result_dir {
        Some(_) => Report::of(&record, "The cost of prefill"),
        None => Report::new("The cost of prefill"),
    };
    if !outcome.source.is_empty() {
        report.introduce(outcome.source.clone());
    }
    if let Some(invalid) = invalid {
        report.introduce(format!("These points cannot be believed: {invalid}."));
    }
    outcome.describe(&mut report)?;
    if args.json {
        print_json(outcome)?;
    } else {
        let mut out = stdout();
        write!(out, "{}", report.text())?;
        out.flush()?;
    }
    if let Some(directory) = &args.result_dir {
        record.write(directory)?;
        let page = report.write(directory).context("writing the report")?;
        tracing::info!(page = %page.display(), "wrote record and report");
    }
    Ok(())
}

fn given(args: &FitArgs) -> Option<Law> {
    let (per_call_ms, per_token_us) = args.per_call_ms.zip(args.per_token_us)?;
    Some(Law::given(per_call_ms, per_token_us, args.constant_ms.unwrap_or(0.0)))
}

fn questions(args: &FitArgs, found: Option<&Found>) -> anyhow::Result<Questions> {
    let prompts = args.wave_prompts as u64;
    let wave = args.wave_tokens.map(|tokens| {
        let wave = Wave::even(prompts, tokens as u64).ok_or_else(|| {
            bad_input(format!(
                "a wave of {prompts} prompts has {prompts} tokens at least; --wave-tokens is {tokens}"
            ))
        })?;
        let tokens_a_call = args.tokens_a_call.map(|tokens| tokens as u64);
        let first_tokens = match args.wave {
            Some(WaveReading::Bimodal) => FirstTokens::Bimodal,
            None => FirstTokens::AsReady,
        };
        anyhow::Ok((Wave { tokens_a_call, ..wave }, first_tokens))
    });
    let bimodal = match args.wave {
        None => None,
        Some(WaveReading::Bimodal) => {
            let moved = args.moved_ms.or_else(|| found?.wave_moved_ms);
            // A wave that is only to be merged needs no check.
            if moved.is_none() && args.wave_tokens.is_none() {
                return Err(bad_input(
                    "--wave bimodal needs to know how far the mean TTFT moved: give --moved-ms",
                ));
            }
            Bimodal::alike(prompts, args.more_calls as u64).zip(moved)
        }
    };
    Ok(Questions {
        lengths: args.lengths.iter().flat_map(|counts| &counts.0).map(|n| *n as u64).collect(),
        wave: wave.transpose()?,
        bimodal,
        flop_per_token: args.flop_per_token,
    })
}
