//! From settings to an engine that can be started: which model, split how, and whether it fits.
//!
//! Everything that can be refused is refused here, before a weight is read or a process started: only
//! the small files of the checkpoint and the headers of its weights have been looked at when
//! [`prepare`] returns.

mod descriptors;
mod layout;
mod sizes;
mod source;

use std::io::Write;

use pocket_actors::api::{EngineOptions, MergeCap, ModelSource};
use pocket_actors::{Engine, EngineError, EngineHandle};
use pocket_collectives::SegmentSpec;
use pocket_config::{DeviceKind, LogFormat, MergedRows, Settings};
use pocket_device::KV_BLOCK_TOKENS;
use pocket_model::chat::{
    CHAT_TEMPLATE_FILE, ChatTemplate, LEGACY_CHAT_TEMPLATE_FILE, TemplateFiles,
};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::memory::{Bytes, HostMemory, MemoryPlan, Sizing};
use pocket_model::tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer};
use pocket_model::{GenerationConfig, ModelConfig};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::commands::{output, rank};
use crate::failure::bad_input;
use crate::progress;

use sizes::{Wish, Wishes};

pub use descriptors::{connections, raise as raise_descriptor_limit};
pub use source::{Source, find};

/// A model that is ready to be loaded.
#[derive(Debug)]
pub struct Boot {
    /// Its name in the API.
    pub name: String,
    /// Its shape.
    pub config: ModelConfig,
    /// The sampling its makers recommend.
    pub generation: GenerationConfig,
    /// How to start it.
    pub options: EngineOptions,
    /// What it takes of the machine's memory.
    pub plan: MemoryPlan,
    /// Why it cannot be had as it was asked for.
    refusal: Option<anyhow::Error>,
    /// Its files.
    checkpoint: Checkpoint,
}

/// Finds the model (on the hub if need be), opens it and decides how it is split, for one sequence at
/// a time.
pub fn prepare(settings: &Settings) -> anyhow::Result<Boot> {
    raise_descriptor_limit()?;
    prepare_for(settings, Wish { value: 1, asked: true })
}

/// The same for as many sequences as the settings say.
pub fn prepare_to_serve(settings: &Settings) -> anyhow::Result<Boot> {
    raise_descriptor_limit()?;
    let sequences = match settings.max_num_seqs {
        Some(sequences) => Wish { value: sequences.get(), asked: true },
        None => Wish { value: sizes::DEFAULT_SEQUENCES, asked: false },
    };
    prepare_for(settings, sequences)
}

fn prepare_for(settings: &Settings, sequences: Wish) -> anyhow::Result<Boot> {
    if settings.device == DeviceKind::Ascend {
        return Err(bad_input(
            "--device ascend: this version is built without Ascend support; use --device cpu",
        ));
    }
    let asked = settings.model.as_ref().map(|model| model.as_str());
    let Source { model, name } = find(asked)?;
    let checkpoint = match &model {
        ModelSource::Demo => Checkpoint::demo()?,
        ModelSource::Directory(directory) => Checkpoint::open(directory)?,
    };
    let cores = std::thread::available_parallelism()?.get();
    let layout = layout::choose(settings, checkpoint.config(), cores)?;
    let sizing = Sizing {
        config: checkpoint.config(),
        world: layout.world,
        packed_bytes: pocket_device::cpu::packed_bytes,
        shared_segment: segment(layout.world).bytes(),
        available: HostMemory::read()?,
    };
    let wishes = Wishes {
        context: layout.max_model_len,
        sequences,
        prompt_rows: settings.max_num_batched_tokens.get(),
        budget: sizes::budget(settings),
        kv_dtype: sizes::kv_dtype(settings),
    };
    let sizes = sizes::choose(&sizing, &wishes)?;
    let name = settings.served_model_name.clone().unwrap_or(name);
    let options = EngineOptions {
        model,
        model_name: name.clone(),
        rank_program: std::env::current_exe()?,
        rank_environment: logging_variables(settings),
        world: layout.world,
        threads_per_rank: layout.threads_per_rank,
        max_model_len: sizes.limits.max_model_len,
        max_num_batched_tokens: wishes.prompt_rows,
        max_num_seqs: sizes.limits.slots,
        kv_blocks: sizes.limits.kv_blocks,
        kv_dtype: sizes.limits.kv_dtype,
        merge: match settings.max_merged_rows {
            MergedRows::Auto => MergeCap::Auto,
            MergedRows::AtMost(rows) => MergeCap::Rows(rows),
        },
        request_timeout: settings.request_timeout.map(|limit| limit.duration()),
        flags: settings.flags.clone(),
        allow_faults: settings.allow_faults,
        stall_timeout: settings.stall_timeout.duration(),
        load_timeout: settings.load_timeout.duration(),
        // A command that serves nobody is never idle.
        self_test_interval: None,
        max_queue: settings.max_queue.get(),
        // A command can be given again; a server says how often.
        max_restarts: 0,
        restart_window: settings.restart_window.duration(),
        observer: None,
    };
    let plan = sizing.plan(options.limits())?;
    Ok(Boot {
        name,
        config: checkpoint.config().clone(),
        generation: checkpoint.generation().clone(),
        options,
        plan,
        refusal: sizes.refusal,
        checkpoint,
    })
}

/// A memory plan as programs read it.
#[derive(Serialize)]
struct DryRun<'a> {
    #[serde(flatten)]
    plan: &'a MemoryPlan,
    /// Tokens the KV cache has room for.
    kv_tokens: usize,
}

/// Ranks log to the same place as this process; let them do it in the same way, whatever source the
/// settings came from.
fn logging_variables(settings: &Settings) -> Vec<(String, String)> {
    let format = match settings.log_format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    // The filter goes by the one variable that takes any: it may have come from there.
    vec![
        (rank::LOG_FILTER.to_owned(), settings.log_level.as_str().to_owned()),
        (rank::LOG_FORMAT.to_owned(), format.to_owned()),
    ]
}

/// The segment the ranks meet in, as far as its size goes: that depends on their number only.
fn segment(world: usize) -> SegmentSpec {
    SegmentSpec { world, epoch: 0, run_id: String::new() }
}

impl Boot {
    /// The tokenizer; a checkpoint without one can only be given token ids.
    pub fn tokenizer(&self) -> anyhow::Result<Tokenizer> {
        let Some(vocabulary) = self.checkpoint.file(TOKENIZER_FILE)? else {
            return Err(bad_input(format!(
                "{} has no {TOKENIZER_FILE}, so it cannot be given text",
                self.checkpoint.describe()
            )));
        };
        let config = self.checkpoint.file(TOKENIZER_CONFIG_FILE)?;
        Tokenizer::from_bytes(&vocabulary, config.as_deref(), self.config.vocab_size)
            .map_err(|error| bad_input(format!("{}: {error}", self.checkpoint.describe())))
    }

    /// The chat template, if the checkpoint has one.
    pub fn chat_template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        let jinja = self.checkpoint.file(CHAT_TEMPLATE_FILE)?;
        let tokenizer_config = self.checkpoint.file(TOKENIZER_CONFIG_FILE)?;
        let legacy = self.checkpoint.file(LEGACY_CHAT_TEMPLATE_FILE)?;
        ChatTemplate::from_files(&TemplateFiles {
            jinja: jinja.as_deref(),
            tokenizer_config: tokenizer_config.as_deref(),
            legacy: legacy.as_deref(),
        })
        .map_err(|error| bad_input(format!("{}: {error}", self.checkpoint.describe())))
    }

    /// Says what is about to be started and how, every flag that is not at its default among it, then
    /// what memory it takes; refuses what does not fit.
    pub fn announce(&mut self) -> anyhow::Result<()> {
        let options = &self.options;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            model = self.name,
            checkpoint = self.checkpoint.describe(),
            ranks = options.world,
            threads_per_rank = options.threads_per_rank,
            device = "cpu",
            max_model_len = options.max_model_len,
            max_num_seqs = options.max_num_seqs,
            max_num_batched_tokens = options.max_num_batched_tokens,
            flags = ?options.flags.non_default(),
            "starting"
        );
        self.log_plan();
        self.check_plan()
    }

    fn log_plan(&self) {
        let plan = &self.plan;
        for (rank, memory) in plan.ranks.iter().enumerate() {
            tracing::info!(
                rank,
                weights = %Bytes(memory.weights),
                kv_cache = %Bytes(memory.kv_cache),
                recurrent_state = %Bytes(memory.recurrent_state),
                activations = %Bytes(memory.activations),
                total = %Bytes(memory.total()),
                "memory plan"
            );
        }
        tracing::info!(
            sequences = plan.limits.slots,
            kv_blocks = plan.limits.kv_blocks,
            kv_tokens = self.kv_tokens(),
            kv_dtype = %plan.limits.kv_dtype,
            shared_segment = %Bytes(plan.shared_segment),
            total = %Bytes(plan.total),
            available = %Bytes(plan.available.bytes),
            available_by = plan.available.from,
            "memory plan of all ranks"
        );
    }

    /// Prints the memory plan on standard output; an error if it does not fit.
    pub fn print_plan(&mut self, json: bool) -> anyhow::Result<()> {
        let kv_tokens = self.kv_tokens();
        if json {
            output::print_json(&DryRun { plan: &self.plan, kv_tokens })?;
        } else {
            let mut out = output::stdout();
            writeln!(out, "{}", self.plan)?;
            writeln!(
                out,
                "KV cache: {kv_tokens} tokens of all sequences together, in blocks of {KV_BLOCK_TOKENS}"
            )?;
            out.flush()?;
        }
        self.check_plan()
    }

    /// Tokens the KV cache has room for.
    pub fn kv_tokens(&self) -> usize {
        self.options.kv_blocks.saturating_mul(KV_BLOCK_TOKENS)
    }

    /// Memory, and the part of it that has to be had as shared memory.
    fn check_plan(&mut self) -> anyhow::Result<()> {
        if let Some(refusal) = self.refusal.take() {
            return Err(refusal);
        }
        self.plan.check()?;
        Ok(segment(self.options.world).check_room()?)
    }

    /// Starts the ranks and loads their weights, with a progress bar on a terminal and log lines
    /// elsewhere. `launched` gets a way to ask how the ranks are while they load; `observe` hears the
    /// share of the weights that is there, 0 to 1. Whether a flag makes outputs wrong is said aloud
    /// when it is known to act: it may have nothing to act on.
    pub async fn start(
        self,
        launched: impl FnOnce(EngineHandle),
        observe: impl FnMut(f64),
    ) -> Result<Engine, EngineError> {
        let (sender, reports) = mpsc::unbounded_channel();
        let showing = progress::show_loading(self.options.world, reports, observe);
        let loading = Engine::launch(self.options, sender).await?;
        launched(loading.handle());
        let loading = loading.ready();
        tokio::pin!(loading);
        let engine = tokio::select! {
            // Reports first: the last of them are then shown before loading is over.
            biased;
            () = showing => loading.await?,
            engine = &mut loading => engine?,
        };
        let status = engine.handle().status().await;
        for note in &status.notes {
            tracing::warn!(note, "flag without effect");
        }
        if let Some(reason) = &status.outputs_wrong {
            tracing::warn!(reason, "OUTPUTS ARE WRONG BY REQUEST");
        }
        Ok(engine)
    }
}
