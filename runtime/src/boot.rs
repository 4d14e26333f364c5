//! From settings to an engine that can be started: which model, split how, and whether it fits.
//!
//! Everything that can be refused is refused here, before a weight is read or a process started: only
//! the small files of the checkpoint and the headers of its weights have been looked at when
//! [`prepare`] returns.

mod layout;
mod source;

use pocket_actors::api::EngineOptions;
use pocket_actors::{Engine, EngineError};
use pocket_config::{DeviceKind, Settings};
use pocket_model::chat::{
    CHAT_TEMPLATE_FILE, ChatTemplate, LEGACY_CHAT_TEMPLATE_FILE, TemplateFiles,
};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer};
use pocket_model::{GenerationConfig, ModelConfig};
use tokio::sync::mpsc;

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
    let Source { model, name } = find(settings.model.as_ref())?;
    let checkpoint = source::open(&model)?;
    let cores = std::thread::available_parallelism()?.get();
    let layout = layout::choose(settings, checkpoint.config(), cores)?;
    let options = EngineOptions {
        model,
        rank_program: std::env::current_exe()?,
        world: layout.world,
        threads_per_rank: layout.threads_per_rank,
        max_model_len: layout.max_model_len,
        max_num_batched_tokens: settings.max_num_batched_tokens.get(),
        flags: settings.flags.clone(),
        stall_timeout: settings.stall_timeout.duration(),
        load_timeout: settings.load_timeout.duration(),
        max_queue: settings.max_queue.get(),
    };
    Ok(Boot {
        name: settings.served_model_name.clone().unwrap_or(name),
        config: checkpoint.config().clone(),
        generation: checkpoint.generation().clone(),
        options,
        checkpoint,
    })
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

    /// Says what is about to be started and how, every flag that is not at its default among it.
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
        if let Some(reason) = options.flags.outputs_wrong() {
            tracing::warn!(reason, "OUTPUTS ARE WRONG BY REQUEST");
        }
        Ok(())
    }

    /// Starts the ranks and loads their weights, with a progress bar on a terminal and log lines
    /// elsewhere. `observe` hears the share of the weights that is there, 0 to 1.
    pub async fn start(self, observe: impl FnMut(f64)) -> Result<Engine, EngineError> {
        let (sender, reports) = mpsc::unbounded_channel();
        let loading = Engine::start(self.options, sender);
        // The reports end when the engine drops the sender, loaded or failed.
        let (engine, ()) = tokio::join!(loading, progress::show_loading(reports, observe));
        engine
    }
}
