//! The operations a backend implements.

use crate::{
    BlockId, DeviceError, DeviceTensor, FullAttention, KvShape, LinearAttention, LinearShape,
    MatrixPart, RowStats, Segment, SlotId, WorkDone,
};

/// One device, owned by one rank and driven by that rank's compute thread.
///
/// Tensors are float32 `[rows, cols]`, row-major and contiguous; outputs never alias inputs unless an
/// operation says "in place". Every operation checks shapes and answers [`DeviceError::Shape`]; none
/// allocates on the hot path beyond workspaces it keeps.
pub trait Device {
    /// Activations and small parameters, float32 `[rows, cols]`.
    type Tensor: DeviceTensor;
    /// A weight matrix `[out, in]`, packed for the device.
    type Matrix;
    /// Keys and values of all full-attention layers, in blocks.
    type KvCache;
    /// Recurrent and convolution state of all linear-attention layers, by slot.
    type RecurrentState;

    /// What runs here, for logs and reports: kind, threads, instruction set.
    fn describe(&self) -> String;

    /// Work asked for since the device was made.
    fn work(&self) -> WorkDone;

    // --- memory

    /// A zeroed tensor with room for `rows` rows, its memory populated.
    fn tensor(&self, rows: usize, cols: usize) -> Result<Self::Tensor, DeviceError>;

    /// A tensor holding `data`, `[data.len() / cols, cols]`.
    fn upload(&self, data: &[f32], cols: usize) -> Result<Self::Tensor, DeviceError>;

    /// Copies row `row` of `src` to `out` (`cols` long), after all queued work.
    fn download(&self, src: &Self::Tensor, row: usize, out: &mut [f32]) -> Result<(), DeviceError>;

    /// Packs the parts, one below the other along the outputs, all with equally many columns. Numbers
    /// other than bf16 are rounded to bf16 (nearest, ties to even).
    fn pack(&self, parts: &[MatrixPart<'_>]) -> Result<Self::Matrix, DeviceError>;

    /// Takes note that all matrices are packed; none comes after. A device that keeps them for a later
    /// process can then say that they are complete.
    fn weights_loaded(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Bytes a packed `[outputs, inputs]` matrix takes, padding included.
    fn packed_bytes(&self, outputs: usize, inputs: usize) -> u64;

    /// A KV cache with its memory populated.
    fn kv_cache(&self, shape: KvShape) -> Result<Self::KvCache, DeviceError>;

    /// State for `slots` sequences in `layers` layers, its memory populated.
    fn recurrent_state(
        &self,
        shape: LinearShape,
        layers: usize,
        slots: usize,
    ) -> Result<Self::RecurrentState, DeviceError>;

    /// Copies the recurrent and convolution state of slot `from` to slot `to`, all layers, so that
    /// two sequences go on from the same tokens. Refuses slots the state does not have.
    fn fork_state(
        &self,
        state: &mut Self::RecurrentState,
        from: SlotId,
        to: SlotId,
    ) -> Result<(), DeviceError>;

    /// Copies the keys and values of block `from` to block `to`, all layers and heads. Refuses blocks
    /// the cache does not have.
    fn copy_block(
        &self,
        cache: &mut Self::KvCache,
        from: BlockId,
        to: BlockId,
    ) -> Result<(), DeviceError>;

    /// Returns when all queued work is done.
    fn synchronize(&self) -> Result<(), DeviceError>;

    // --- kernels

    /// `out[i] = table[ids[i] - first_id]`, or zeros when the id is outside the table's rows
    /// (vocabulary-parallel embedding). `table` `[vocab shard, hidden]`, `out` `[ids, hidden]`.
    fn embed(
        &self,
        table: &Self::Matrix,
        first_id: u32,
        ids: &[u32],
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// `out = x * rsqrt(mean(x^2) + eps) * weight` by row. `weight` `[1, cols]`, already `1 + w`.
    fn rms_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        eps: f32,
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// `out = x @ w.T`. `x` `[rows, in]`, `w` `[out, in]`, `out` `[rows, out]`. Each output sums its
    /// inputs in order with fused multiply-adds in float32.
    fn matmul(
        &self,
        x: &Self::Tensor,
        w: &Self::Matrix,
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// `x += y`, in place, same shape.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), DeviceError>;

    /// `x += bias` on every row, in place. `bias` `[1, cols]`.
    fn add_bias(&self, x: &mut Self::Tensor, bias: &Self::Tensor) -> Result<(), DeviceError>;

    /// `out = silu(gate) * up`. `gate_up` `[rows, 2 n]`: gate first, then up; `out` `[rows, n]`.
    fn swiglu(&self, gate_up: &Self::Tensor, out: &mut Self::Tensor) -> Result<(), DeviceError>;

    /// `out[i] = x[rows[i]]`.
    fn gather_rows(
        &self,
        x: &Self::Tensor,
        rows: &[usize],
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// Rotary table of a step: for each row at position p, `cos(p f_j)` then `sin(p f_j)` over the
    /// frequencies. `out` `[rows, 2 * frequencies.len()]`.
    fn rotary(
        &self,
        segments: &[Segment<'_>],
        frequencies: &[f32],
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// Gated full attention: normalise q and k by head, rotate, append k and v to the cache, attend
    /// causally within each segment's own blocks (softmax scaled by `head_dim^-0.5`, blocks visited in
    /// order), multiply by `sigmoid(gate)`. `qkv` `[rows, shape.projection()]`, `out`
    /// `[rows, heads * head_dim]`.
    fn full_attention(
        &self,
        op: &FullAttention<'_, Self>,
        qkv: &Self::Tensor,
        segments: &[Segment<'_>],
        cache: &mut Self::KvCache,
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// Gated DeltaNet (arXiv 2412.06464): causal convolution and silu over the channels, L2 norm of q
    /// and k by head, the gated delta rule from each segment's own slot in the form the segment asks
    /// for, then the gated RMS norm. `projection` `[rows, shape.projection()]`, `out`
    /// `[rows, value_heads * value_dim]`.
    fn linear_attention(
        &self,
        op: &LinearAttention<'_, Self>,
        projection: &Self::Tensor,
        segments: &[Segment<'_>],
        state: &mut Self::RecurrentState,
        out: &mut Self::Tensor,
    ) -> Result<(), DeviceError>;

    /// Maximum, sum of exponentials and target logit of each row. `targets` has one entry a row. In a
    /// row with a NaN or plus infinity maximum and sum are NaN; the other rows are not concerned. A row
    /// of nothing but minus infinity has that as its maximum, and the sum 0.
    fn row_stats(
        &self,
        logits: &Self::Tensor,
        targets: &[Option<usize>],
    ) -> Result<Vec<RowStats>, DeviceError>;
}
