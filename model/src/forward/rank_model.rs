//! The model on one rank: loads the shard, keeps the sequences' state, runs steps.

use pocket_collectives::{AllReduce, Phase, ProgressSink};
use pocket_device::{
    BlockId, Device, DeviceTensor, KvDtype, RECURRENCE_CHUNK, Recurrence, Segment, SlotId, WorkDone,
};

use super::attention::{self, AttentionMixer, AttentionWork};
use super::linear_attention::{LinearMixer, LinearWork};
use super::loader::{Loader, Slice};
use super::mlp::{Mlp, MlpWork};
use super::profile::{Laps, PassPhase, PassProfile};
use super::step::{OutputRow, RowResult, Step, StepSegment, Want};
use super::{ForwardError, check, matrices};
use crate::checkpoint::Checkpoint;
use crate::config::{LayerKind, ModelConfig};
use crate::shard::Shard;

/// Rows that go through the head at a time: bounds the logits' memory at `32 x vocabulary`.
pub(crate) const HEAD_ROWS: usize = 32;

/// What a rank is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ModelLimits {
    /// Positions of a sequence.
    pub max_model_len: usize,
    /// Rows of a step.
    pub max_rows: usize,
    /// Sequences with recurrent state.
    pub slots: usize,
    /// KV blocks over all sequences.
    pub kv_blocks: usize,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
}

/// All-reduces of a step over several ranks: two in each layer, and one of the embedding.
pub fn all_reduces(config: &ModelConfig) -> usize {
    2 * config.layers.len() + 1
}

/// Takes the results of a step's outputs in their order.
pub type RowSink<'a> = dyn FnMut(usize, RowResult<'_>) -> Result<(), ForwardError> + 'a;

enum Mixer<D: Device> {
    Linear(LinearMixer<D>),
    Full(AttentionMixer<D>),
}

struct Layer<D: Device> {
    input_norm: D::Tensor,
    mixer: Mixer<D>,
    post_norm: D::Tensor,
    mlp: Mlp<D>,
}

/// Activations of a step, allocated once for the most rows a step may have.
struct Work<D: Device> {
    hidden: D::Tensor,
    normed: D::Tensor,
    delta: D::Tensor,
    attention: AttentionWork<D>,
    linear: LinearWork<D>,
    mlp: MlpWork<D>,
    head_rows: D::Tensor,
    head_normed: D::Tensor,
    logits: D::Tensor,
}

/// One rank's shard of a model, with the state of the sequences it serves.
pub struct RankModel<D: Device> {
    device: D,
    config: ModelConfig,
    shard: Shard,
    limits: ModelLimits,
    embedding: D::Matrix,
    layers: Vec<Layer<D>>,
    final_norm: D::Tensor,
    head: Option<D::Matrix>,
    frequencies: Vec<f32>,
    cache: D::KvCache,
    state: D::RecurrentState,
    work: Work<D>,
    host_row: Vec<f32>,
    profiling: bool,
    profile: Option<PassProfile>,
}

impl<D: Device> RankModel<D> {
    /// Loads `shard` of `checkpoint` to `device` and reserves state for `limits`. `progress` hears
    /// bytes packed and bytes to pack.
    pub fn load(
        device: D,
        checkpoint: &Checkpoint,
        shard: &Shard,
        limits: ModelLimits,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ForwardError> {
        let config = checkpoint.config().clone();
        let attention_shape = shard.attention_shape(&config);
        let linear_shape = shard.linear_shape(&config);
        let linear_layers = config.linear_layers();

        // State first: it is the cheap thing to fail on.
        let cache = device.kv_cache(shard.kv_shape(&config, limits.kv_blocks, limits.kv_dtype))?;
        let state = device.recurrent_state(linear_shape, linear_layers, limits.slots)?;
        let (rows, hidden) = (limits.max_rows, config.hidden_size);
        let head_rows = HEAD_ROWS.min(rows);
        let work = Work {
            hidden: device.tensor(rows, hidden)?,
            normed: device.tensor(rows, hidden)?,
            delta: device.tensor(rows, hidden)?,
            attention: AttentionWork::new(&device, &attention_shape, rows)?,
            linear: LinearWork::new(&device, &linear_shape, rows)?,
            mlp: MlpWork::new(&device, shard.intermediate.len(), rows)?,
            head_rows: device.tensor(head_rows, hidden)?,
            head_normed: device.tensor(head_rows, hidden)?,
            logits: device.tensor(head_rows, shard.vocab.len())?,
        };

        let total = matrices(&config, shard)
            .iter()
            .map(|(outputs, inputs)| device.packed_bytes(*outputs, *inputs))
            .sum();
        let mut loader = Loader::new(&device, checkpoint, shard, total, progress);
        let vocabulary = |name: &str| Slice {
            name: name.to_string(),
            rows: shard.vocab.clone(),
            cols: 0..hidden,
        };
        let embedding = loader.matrix(&[vocabulary("model.embed_tokens.weight")])?;
        let mut layers = Vec::with_capacity(config.layers.len());
        let mut of_kind = [0, 0];
        for (index, kind) in config.layers.iter().enumerate() {
            let nth = &mut of_kind[usize::from(*kind == LayerKind::Full)];
            layers.push(load_layer(&mut loader, &config, index, *kind, *nth)?);
            *nth += 1;
        }
        let final_norm = loader.norm("model.norm.weight", hidden)?;
        let head = (!config.tie_word_embeddings)
            .then(|| loader.matrix(&[vocabulary("lm_head.weight")]))
            .transpose()?;
        device.weights_loaded()?;
        Ok(RankModel {
            frequencies: attention::frequencies(&config),
            host_row: vec![0.0; shard.vocab.len()],
            shard: shard.clone(),
            device,
            config,
            limits,
            embedding,
            layers,
            final_norm,
            head,
            cache,
            state,
            work,
            profiling: false,
            profile: None,
        })
    }

    /// The device this rank runs on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What this rank was loaded for.
    pub fn limits(&self) -> ModelLimits {
        self.limits
    }

    /// Work of this rank's kernels since it was loaded.
    pub fn work(&self) -> WorkDone {
        self.device.work()
    }

    /// Whether passes are timed by phase from now on.
    pub fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
    }

    /// Where the time of the last pass went, if it was profiled; given once.
    pub fn take_profile(&mut self) -> Option<PassProfile> {
        self.profile.take()
    }

    /// Runs one step: [`all_reduces`] of them, whatever the step carries, then the head for the
    /// wanted rows, handed to `results` in order. Leaves the state of the step's slots and blocks at
    /// the end of their segments, and the forks' targets as copies of it.
    pub fn forward(
        &mut self,
        step: &Step,
        all_reduce: &mut dyn AllReduce<D>,
        progress: &dyn ProgressSink,
        results: &mut RowSink<'_>,
    ) -> Result<(), ForwardError> {
        check::step(step, &self.config, &self.limits)?;
        let phase = if step.has_prompt() { Phase::Prefill } else { Phase::Decode };
        progress.begin_step(step.number, phase);
        let mut laps = Laps::new(self.profiling);

        let blocks: Vec<Vec<BlockId>> = step
            .segments
            .iter()
            .map(|segment| segment.blocks.iter().copied().map(BlockId).collect())
            .collect();
        let segments = lay_out(&step.segments, &blocks);
        let ids: Vec<u32> =
            step.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        self.set_rows(ids.len());

        let device = &self.device;
        let work = &mut self.work;
        device.rotary(&segments, &self.frequencies, &mut work.attention.rotary)?;
        device.embed(&self.embedding, self.shard.vocab.start as u32, &ids, &mut work.hidden)?;
        laps.lap(device, PassPhase::Embed)?;
        all_reduce.all_reduce(&mut work.hidden)?;
        laps.lap(device, PassPhase::AllReduce)?;

        let eps = self.config.rms_norm_eps;
        for (index, layer) in self.layers.iter().enumerate() {
            progress.enter_layer(index as u32);
            laps.enter(Some(index as u32));
            device.rms_norm(&work.hidden, &layer.input_norm, eps, &mut work.normed)?;
            laps.lap(device, PassPhase::Norm)?;
            let (x, out) = (&work.normed, &mut work.delta);
            match &layer.mixer {
                Mixer::Full(mixer) => {
                    mixer.run(device, x, &segments, &mut self.cache, &mut work.attention, out)?;
                    laps.lap(device, PassPhase::Full)?;
                }
                Mixer::Linear(mixer) => {
                    mixer.run(device, x, &segments, &mut self.state, &mut work.linear, out)?;
                    laps.lap(device, PassPhase::Linear)?;
                }
            }
            all_reduce.all_reduce(&mut work.delta)?;
            laps.lap(device, PassPhase::AllReduce)?;
            device.add(&mut work.hidden, &work.delta)?;

            device.rms_norm(&work.hidden, &layer.post_norm, eps, &mut work.normed)?;
            laps.lap(device, PassPhase::Norm)?;
            layer.mlp.run(device, &work.normed, &mut work.mlp, &mut work.delta)?;
            laps.lap(device, PassPhase::Mlp)?;
            all_reduce.all_reduce(&mut work.delta)?;
            laps.lap(device, PassPhase::AllReduce)?;
            device.add(&mut work.hidden, &work.delta)?;
        }
        for fork in &step.forks {
            let (from, to) = (SlotId(fork.from_slot), SlotId(fork.to_slot));
            device.fork_state(&mut self.state, from, to)?;
            if let Some((from, to)) = fork.block {
                device.copy_block(&mut self.cache, BlockId(from), BlockId(to))?;
            }
        }
        progress.enter_layer(u32::MAX);
        laps.enter(None);
        self.head(step, progress, results)?;
        laps.lap(&self.device, PassPhase::Head)?;
        self.profile = laps.finish();
        Ok(())
    }

    fn set_rows(&mut self, rows: usize) {
        let work = &mut self.work;
        for tensor in [&mut work.hidden, &mut work.normed, &mut work.delta] {
            tensor.set_rows(rows);
        }
        work.mlp.set_rows(rows);
        work.attention.set_rows(rows);
        work.linear.set_rows(rows);
    }

    /// Final norm, head and results for the wanted rows only, a few at a time.
    fn head(
        &mut self,
        step: &Step,
        progress: &dyn ProgressSink,
        results: &mut RowSink<'_>,
    ) -> Result<(), ForwardError> {
        let (device, work) = (&self.device, &mut self.work);
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        for (piece, outputs) in step.outputs.chunks(HEAD_ROWS).enumerate() {
            progress.beat(Phase::Logits);
            let rows: Vec<usize> = outputs.iter().map(|output| output.row).collect();
            for tensor in [&mut work.head_rows, &mut work.head_normed, &mut work.logits] {
                tensor.set_rows(rows.len());
            }
            device.gather_rows(&work.hidden, &rows, &mut work.head_rows)?;
            let eps = self.config.rms_norm_eps;
            device.rms_norm(&work.head_rows, &self.final_norm, eps, &mut work.head_normed)?;
            device.matmul(&work.head_normed, head, &mut work.logits)?;

            let first = piece * HEAD_ROWS;
            let stats = if outputs.iter().any(|output| output.want != Want::Logits) {
                let targets: Vec<_> =
                    outputs.iter().map(|output| target(output, &self.shard)).collect();
                device.row_stats(&work.logits, &targets)?
            } else {
                Vec::new()
            };
            for (row, output) in outputs.iter().enumerate() {
                if output.want == Want::Logits {
                    device.download(&work.logits, row, &mut self.host_row)?;
                    results(first + row, RowResult::Logits(&self.host_row))?;
                    continue;
                }
                let stats = &stats[row];
                let result = RowResult::Stats {
                    argmax: (self.shard.vocab.start + stats.argmax) as u32,
                    max: stats.max,
                    sum_exp: stats.sum_exp,
                    target: stats.target,
                };
                results(first + row, result)?;
            }
        }
        Ok(())
    }
}

/// Column of an output's target in this rank's shard, if it lies there.
fn target(output: &OutputRow, shard: &Shard) -> Option<usize> {
    match output.want {
        Want::Target(id) if shard.vocab.contains(&(id as usize)) => {
            Some(id as usize - shard.vocab.start)
        }
        _ => None,
    }
}

fn load_layer<D: Device>(
    loader: &mut Loader<'_, D>,
    config: &ModelConfig,
    index: usize,
    kind: LayerKind,
    nth: usize,
) -> Result<Layer<D>, ForwardError> {
    let (prefix, hidden) = (format!("model.layers.{index}."), config.hidden_size);
    let input_norm = loader.norm(&format!("{prefix}input_layernorm.weight"), hidden)?;
    let mixer = match kind {
        LayerKind::Full => {
            Mixer::Full(AttentionMixer::load(loader, config, &format!("{prefix}self_attn."), nth)?)
        }
        LayerKind::Linear => {
            Mixer::Linear(LinearMixer::load(loader, config, &format!("{prefix}linear_attn."), nth)?)
        }
    };
    Ok(Layer {
        input_norm,
        mixer,
        post_norm: loader.norm(&format!("{prefix}post_attention_layernorm.weight"), hidden)?,
        mlp: Mlp::load(loader, config, &format!("{prefix}mlp."))?,
    })
}

fn lay_out<'a>(segments: &[StepSegment], blocks: &'a [Vec<BlockId>]) -> Vec<Segment<'a>> {
    let mut first_row = 0;
    let mut laid = Vec::with_capacity(segments.len());
    for (segment, blocks) in segments.iter().zip(blocks) {
        laid.push(Segment {
            slot: SlotId(segment.slot),
            first_row,
            rows: segment.tokens.len(),
            position: segment.position,
            recurrence: if segment.generated {
                Recurrence::Stepwise
            } else {
                debug_assert_eq!(segment.position % RECURRENCE_CHUNK, 0);
                Recurrence::Chunked
            },
            blocks,
        });
        first_row += segment.tokens.len();
    }
    laid
}
