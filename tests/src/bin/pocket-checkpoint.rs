//! Writes checkpoints made to order: random ones of any shape, and scripted ones with a known answer.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use pocket_tests::generate::{End, RandomOptions, Script, Shape, write_random};

/// Writes checkpoints for development and tests.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Random weights: a real model's work, and no sense.
    Random(RandomArgs),
    /// A model whose greedy answer is known beforehand.
    Scripted(ScriptedArgs),
}

#[derive(Args)]
struct RandomArgs {
    /// 0.8b, 27b, tiny, or the path of a config.json.
    #[arg(long)]
    shape: String,
    /// Make only the first layers.
    #[arg(long)]
    layers: Option<usize>,
    /// The same seed gives the same numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Safetensors files to spread the tensors over.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    shards: u16,
    /// Directory to make.
    out: PathBuf,
}

#[derive(Args)]
struct ScriptedArgs {
    /// The answer; it is cut into tokens that all differ.
    #[arg(long, conflicts_with_all = ["piece", "ids"])]
    #[arg(required_unless_present_any = ["piece", "ids"])]
    text: Option<String>,
    /// One token of the answer; give it again for the next.
    #[arg(long, conflicts_with = "ids")]
    piece: Vec<String>,
    /// The answer as token ids.
    #[arg(long, value_delimiter = ',')]
    ids: Vec<u32>,
    /// Go on at this place of the chain, from 0, instead of ending.
    #[arg(long)]
    loop_to: Option<usize>,
    /// Give the token at this place a rival with exactly equal logits and a higher id.
    #[arg(long, value_delimiter = ',')]
    tie_at: Vec<usize>,
    /// Directory to make.
    out: PathBuf,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Random(args) => random(&args),
        Command::Scripted(args) => scripted(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pocket-checkpoint: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn random(args: &RandomArgs) -> anyhow::Result<()> {
    let mut shape = Shape::named(&args.shape)?;
    if let Some(layers) = args.layers {
        if layers == 0 || layers > shape.num_hidden_layers {
            bail!("--layers {layers}: this shape has 1 to {}", shape.num_hidden_layers);
        }
        shape.num_hidden_layers = layers;
    }
    let options = RandomOptions { seed: args.seed, shards: usize::from(args.shards) };
    let start = Instant::now();
    let parameters = write_random(&shape, options, &args.out)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{}: {parameters} parameters, written in {seconds:.1} s", args.out.display());
    Ok(())
}

fn scripted(args: &ScriptedArgs) -> anyhow::Result<()> {
    let mut script = match &args.text {
        Some(text) => Script::text(text)?,
        None if args.ids.is_empty() => Script::pieces(args.piece.iter().map(String::as_str))?,
        None => Script::ids(&args.ids)?,
    };
    if let Some(place) = args.loop_to {
        script = script.then(End::LoopTo(place))?;
    }
    for &place in &args.tie_at {
        script = script.tie_at(place)?;
    }
    let checkpoint = script.write(&args.out)?;
    println!("{}: answers {:?}", args.out.display(), checkpoint.chain);
    Ok(())
}
