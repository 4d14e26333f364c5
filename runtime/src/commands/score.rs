//! `pocketd score`: how likely a model finds a text.

use std::io::Write;
use std::path::Path;

use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineCounters, Score, ScoreRequest};
use pocket_config::Settings;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;

use super::engine;
use super::output::{print_json, stdout};
use super::prompt;
use crate::boot;
use crate::cli::ScoreArgs;
use crate::failure::bad_input;

/// Scores as programs read them.
#[derive(Serialize)]
struct Scored {
    ids: Vec<u32>,
    /// Natural logarithms; null for the first token, which nothing precedes.
    logprobs: Vec<Option<f64>>,
    /// `exp` of the mean negative log-probability; null for a single token.
    perplexity: Option<f64>,
    counters: EngineCounters,
}

/// Starts an engine, scores, and prints.
pub fn run(settings: &Settings, args: ScoreArgs) -> anyhow::Result<()> {
    let mut boot = boot::prepare(settings)?;
    let ids = match (&args.prompt.ids, &args.prompt.text) {
        (Some(ids), _) => ids.0.clone(),
        (None, Some(text)) => prompt::of_text(&boot, text)?,
        (None, None) => return Err(bad_input("there is no text")),
    };
    prompt::room(&boot, "text", &ids)?;
    if let Some(file) = &args.logits {
        check_folder(file)?;
    }
    boot.announce()?;
    let pieces: Option<Vec<String>> = match args.json {
        true => None,
        false => Some(pieces(&boot, &ids)),
    };
    let request = ScoreRequest {
        id: "score".to_owned(),
        ids: ids.clone(),
        chunk: args.chunk,
        last_logits: args.logits.is_some(),
    };
    let score =
        engine::with_engine(boot, async |engine: EngineHandle| Ok(engine.score(request).await?))?;
    if let Some(file) = &args.logits {
        write_logits(file, &score)?;
    }
    let perplexity = perplexity(&score.logprobs);
    let scored = Scored { ids, logprobs: score.logprobs, perplexity, counters: score.counters };
    match pieces {
        None => print_json(&scored),
        Some(pieces) => print_table(&scored, &pieces),
    }
}

/// Each token as text, quoted so that spaces and line ends show.
fn pieces(boot: &boot::Boot, ids: &[u32]) -> Vec<String> {
    // A checkpoint without a tokenizer can still score ids.
    let Ok(tokenizer) = boot.tokenizer() else { return vec![String::new(); ids.len()] };
    let text = |id: &u32| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned();
    ids.iter().map(|id| format!("{:?}", text(id))).collect()
}

/// The folder of an output file must be there before minutes are spent on what goes into the file.
fn check_folder(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => Err(bad_input(format!(
            "--logits {}: there is no directory {}",
            file.display(),
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn perplexity(logprobs: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = logprobs.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| (-known.iter().sum::<f64>() / known.len() as f64).exp())
}

/// Writes `logits`, float32 `[vocab]`.
fn write_logits(file: &Path, score: &Score) -> anyhow::Result<()> {
    let Some(logits) = &score.last_logits else {
        anyhow::bail!("the engine returned no logits");
    };
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let tensor = TensorView::new(Dtype::F32, vec![logits.len()], &bytes)?;
    let file_bytes = safetensors::serialize([("logits", tensor)], None)?;
    std::fs::write(file, file_bytes)
        .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", file.display()))
}

fn print_table(scored: &Scored, pieces: &[String]) -> anyhow::Result<()> {
    let mut out = stdout();
    writeln!(out, "{:>8}  {:>8}  {:>12}  text", "position", "token", "logprob")?;
    for (position, (id, logprob)) in scored.ids.iter().zip(&scored.logprobs).enumerate() {
        let logprob = logprob.map_or_else(|| "-".to_owned(), |value| format!("{value:.6}"));
        let piece = pieces.get(position).map_or("", String::as_str);
        writeln!(out, "{position:>8}  {id:>8}  {logprob:>12}  {piece}")?;
    }
    match scored.perplexity {
        Some(perplexity) => writeln!(out, "perplexity {perplexity:.6}")?,
        None => writeln!(out, "perplexity - (a single token has nothing before it)")?,
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean() {
        let half = (0.5_f64).ln();
        assert!((perplexity(&[None, Some(half), Some(half)]).unwrap() - 2.0).abs() < 1e-12);
        let mixed = perplexity(&[None, Some(-1.0), Some(-3.0)]).unwrap();
        assert!((mixed - 2.0_f64.exp()).abs() < 1e-12);
        assert_eq!(perplexity(&[None]), None);
    }

    #[test]
    fn logits_are_written_as_one_float32_vector() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("logits.safetensors");
        let logits = vec![1.5_f32, -2.25, 0.0];
        let score = Score {
            logprobs: vec![None],
            last_logits: Some(logits.clone()),
            counters: EngineCounters::default(),
        };
        write_logits(&file, &score).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor("logits").unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[3][..]));
        let read: Vec<f32> = tensor
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(read, logits);
    }

    #[test]
    fn an_output_folder_must_exist() {
        let error = check_folder(Path::new("/no/such/folder/file")).unwrap_err().to_string();
        assert!(error.contains("there is no directory /no/such/folder"), "{error}");
        assert!(check_folder(Path::new("file")).is_ok());
    }
}
