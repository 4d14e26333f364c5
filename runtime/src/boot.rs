//! From settings to an engine that can be started: which model, split how, and whether it fits.
//!
//! Everything that can be refused is refused here, before a weight is read or a process started: only
//! the small files of the checkpoint and the headers of its weights have been looked at when
//! [`prepare`] returns.

mod layout;
mod source;

use std::io::Write;

use pocket_actors::api::{EngineOptions, ModelSource};
use pocket_actors::{Engine, EngineError, EngineHandle};
use pocket_collectives::SegmentSpec;
use pocket_config::{DeviceKind, LogFormat, Settings};
use pocket_model::chat::{
    CHAT_TEMPLATE_FILE, ChatTemplate, LEGACY_CHAT_TEMPLATE_FILE, TemplateFiles,
};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::memory::{Bytes, HostMemory, MemoryPlan};
use pocket_model::tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer};
use pocket_model::{GenerationConfig, ModelConfig};
use tokio::sync::mpsc;

use crate::commands::{output, rank};
use crate::failure::bad_input;
use crate::progress;

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
    /// Its files.
    checkpoint: Checkpoint,
}

/// Finds the model (on the hub if need be), opens it and decides how it is split.
pub fn prepare(settings: &Settings) -> anyhow::Result<Boot> {
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
    let options = EngineOptions {
        model,
        rank_program: std::env::current_exe()?,
        rank_environment: logging_variables(settings),
        world: layout.world,
        threads_per_rank: layout.threads_per_rank,
        max_model_len: layout.max_model_len,
        max_num_batched_tokens: settings.max_num_batched_tokens.get(),
        flags: settings.flags.clone(),
        stall_timeout: settings.stall_timeout.duration(),
        load_timeout: settings.load_timeout.duration(),
        max_queue: settings.max_queue.get(),
    };
    let plan = MemoryPlan::new(
        checkpoint.config(),
        options.world,
        options.limits(),
        pocket_device::cpu::packed_bytes,
        segment(options.world).bytes(),
        HostMemory::read()?,
    )?;
    Ok(Boot {
        name: settings.served_model_name.clone().unwrap_or(name),
        config: checkpoint.config().clone(),
        generation: checkpoint.generation().clone(),
        options,
        plan,
        checkpoint,
    })
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
    pub fn announce(&self) -> anyhow::Result<()> {
        let options = &self.options;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            model = self.name,
            checkpoint = self.checkpoint.describe(),
            ranks = options.world,
            threads_per_rank = options.threads_per_rank,
            device = "cpu",
            max_model_len = options.max_model_len,
            max_num_batched_tokens = options.max_num_batched_tokens,
            flags = ?options.flags.non_default(),
            "starting"
        );
        self.warn_of_unused_defaults();
        self.log_plan();
        self.check_plan()
    }

    /// A checkpoint's own defaults that this version does not apply would otherwise be lost silently.
    fn warn_of_unused_defaults(&self) {
        let defaults = [
            ("min_p", self.generation.min_p, 0.0),
            ("repetition_penalty", self.generation.repetition_penalty, 1.0),
        ];
        for (parameter, value, inert) in defaults {
            if let Some(value) = value.filter(|value| *value != inert) {
                tracing::warn!(
                    parameter,
                    value,
                    "not applied: a default of generation_config.json"
                );
            }
        }
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
            shared_segment = %Bytes(plan.shared_segment),
            total = %Bytes(plan.total),
            available = %Bytes(plan.available.bytes),
            available_by = plan.available.from,
            "memory plan of all ranks"
        );
    }

    /// Prints the memory plan on standard output; an error if it does not fit.
    pub fn print_plan(&self, json: bool) -> anyhow::Result<()> {
        if json {
            output::print_json(&self.plan)?;
        } else {
            let mut out = output::stdout();
            writeln!(out, "{}", self.plan)?;
            out.flush()?;
        }
        self.check_plan()
    }

    /// Memory, and the part of it that has to be had as shared memory.
    fn check_plan(&self) -> anyhow::Result<()> {
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
