//! How a model is spread over ranks and threads when nobody says.

use pocket_config::{FlagSet, Settings};
use pocket_model::{ModelConfig, Shard};

use super::sizes::Wish;
use crate::failure::bad_input;

/// Ranks, threads and lengths of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of ranks.
    pub world: usize,
    /// Compute threads of each.
    pub threads_per_rank: usize,
    /// Positions of a sequence, as far as the model goes.
    pub max_model_len: Wish,
}

/// Numbers of ranks tried when none is asked for, best first.
const WORLDS: [usize; 3] = [4, 2, 1];

/// Longest context planned for when none is asked for: the memory of a model's full context would
/// often be more than there is, and is seldom used.
const DEFAULT_CONTEXT: usize = 32_768;

/// What the settings say of the layout, completed for `model` on a machine with `cores` cores.
pub fn choose(settings: &Settings, model: &ModelConfig, cores: usize) -> anyhow::Result<Layout> {
    let world = world(settings, model, cores)?;
    check_fault(&settings.flags, world)?;
    let threads_per_rank = match settings.threads_per_rank {
        Some(threads) => threads.get(),
        None => (cores / world).max(1),
    };
    Ok(Layout { world, threads_per_rank, max_model_len: context(settings, model)? })
}

fn world(settings: &Settings, model: &ModelConfig, cores: usize) -> anyhow::Result<usize> {
    if let Some(world) = settings.tensor_parallel_size {
        // Refuses a size that does not divide, and lists those that do.
        Shard::new(model, 0, world.get())?;
        return Ok(world.get());
    }
    let sizes = Shard::sizes(model);
    let fits = |world: &&usize| sizes.contains(*world) && **world <= cores;
    Ok(WORLDS.iter().find(fits).copied().unwrap_or(1))
}

fn context(settings: &Settings, model: &ModelConfig) -> anyhow::Result<Wish> {
    let most = model.max_position_embeddings;
    match settings.max_model_len {
        None => Ok(Wish { value: most.min(DEFAULT_CONTEXT), asked: false }),
        Some(asked) if asked.get() <= most => Ok(Wish { value: asked.get(), asked: true }),
        Some(asked) => Err(bad_input(format!(
            "--max-model-len {}: the model was trained for {most} positions \
             (max_position_embeddings)",
            asked.get()
        ))),
    }
}

/// A fault on a rank that does not exist would never fire, and its test would prove nothing.
fn check_fault(flags: &FlagSet, world: usize) -> anyhow::Result<()> {
    match flags.fault() {
        Some(fault) if fault.rank >= world => Err(bad_input(format!(
            "POCKET_FAULT={fault}: there is no rank {}; ranks go from 0 to {}",
            fault.rank,
            world - 1
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pocket_model::checkpoint::Checkpoint;

    use super::*;

    /// The demo model, which splits over 1, 2 and 4 ranks.
    fn model() -> ModelConfig {
        Checkpoint::demo().unwrap().config().clone()
    }

    fn settings(toml: &str) -> Settings {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pocketd.toml");
        std::fs::write(&file, toml).unwrap();
        Settings::load(&pocket_config::Sources {
            config: Some(file.clone()),
            default_file: file,
            environment: Vec::new(),
            command_line: Vec::new(),
        })
        .unwrap()
    }

    fn chosen(toml: &str, cores: usize) -> (usize, usize) {
        let layout = choose(&settings(toml), &model(), cores).unwrap();
        (layout.world, layout.threads_per_rank)
    }

    fn refusal(toml: &str) -> String {
        choose(&settings(toml), &model(), 8).unwrap_err().to_string()
    }

    #[test]
    fn ranks_follow_the_cores_when_nobody_says() {
        let table =
            [(1, (1, 1)), (2, (2, 1)), (3, (2, 1)), (4, (4, 1)), (16, (4, 4)), (19, (4, 4))];
        for (cores, expected) in table {
            assert_eq!(chosen("", cores), expected, "{cores} cores");
        }
    }

    #[test]
    fn ranks_follow_the_model_too() {
        let model = ModelConfig { heads: 6, kv_heads: 2, ..model() };
        let layout = choose(&Settings::default(), &model, 16).unwrap();
        assert_eq!((layout.world, layout.threads_per_rank), (2, 8));
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        assert_eq!(chosen("tensor_parallel_size = 4", 2), (4, 1));
        assert_eq!(chosen("tensor_parallel_size = 1\nthreads_per_rank = 3", 2), (1, 3));
    }

    #[test]
    fn a_size_that_does_not_divide_is_refused_with_those_that_do() {
        let message = refusal("tensor_parallel_size = 3");
        assert!(message.contains("size 3") && message.contains("1, 2, 4"), "{message}");
    }

    #[test]
    fn the_context_is_the_models_at_most() {
        let model = ModelConfig { max_position_embeddings: 262_144, ..model() };
        let context = |toml| choose(&settings(toml), &model, 1).map(|layout| layout.max_model_len);
        assert_eq!(context("").unwrap(), Wish { value: 32_768, asked: false });
        let asked = Wish { value: 262_144, asked: true };
        assert_eq!(context("max_model_len = 262144").unwrap(), asked);
        let message = context("max_model_len = 262145").unwrap_err().to_string();
        assert!(message.contains("262145") && message.contains("262144"), "{message}");
        let small = ModelConfig { max_position_embeddings: 2048, ..model.clone() };
        assert_eq!(choose(&Settings::default(), &small, 1).unwrap().max_model_len.value, 2048);
    }

    #[test]
    fn a_fault_needs_its_rank() {
        let fault = "allow_faults = true\ntensor_parallel_size = 2\n[flags]\nPOCKET_FAULT = ";
        assert!(refusal(&format!("{fault}'2:load:1:exit'")).contains("no rank 2"));
        assert_eq!(chosen(&format!("{fault}'1:load:1:exit'"), 2), (2, 1));
    }
}
