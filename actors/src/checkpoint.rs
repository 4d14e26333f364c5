//! Opening a checkpoint, wherever it comes from.

use pocket_model::ModelError;
use pocket_model::checkpoint::Checkpoint;
use pocket_model::tokenizer::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer};

use crate::api::ModelSource;
use crate::error::EngineError;

/// Opens the files and checks their headers; no weight is read.
pub(crate) fn open(model: &ModelSource) -> Result<Checkpoint, ModelError> {
    match model {
        ModelSource::Demo => Checkpoint::demo(),
        ModelSource::Directory(directory) => Checkpoint::open(directory),
    }
}

/// The tokenizer of a checkpoint, if it has one.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>, EngineError> {
    let Some(vocabulary) = checkpoint.file(TOKENIZER_FILE)? else {
        tracing::warn!(
            checkpoint = checkpoint.describe(),
            "no {TOKENIZER_FILE}: token ids only, no text and no stop texts"
        );
        return Ok(None);
    };
    let config = checkpoint.file(TOKENIZER_CONFIG_FILE)?;
    let vocab_size = checkpoint.config().vocab_size;
    match Tokenizer::from_bytes(&vocabulary, config.as_deref(), vocab_size) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(error) => Err(EngineError::Tokenizer { checkpoint: checkpoint.describe(), error }),
    }
}
