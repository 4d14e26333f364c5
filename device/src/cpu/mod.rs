//! The CPU as a device: weights in bf16 tiles, float32 arithmetic, AVX2+FMA or portable kernels, one
//! pool of pinned threads a rank. Each kernel lives in the file named for it.

mod arena;
mod attention;
mod delta_rule;
mod disjoint;
mod elementwise;
pub mod embed;
mod kv_cache;
mod lanes;
pub mod limits;
mod mapping;
mod math;
pub mod matmul;
pub mod matrix;
pub mod memory;
mod norm;
mod number;
pub mod pool;
mod prefetch;
mod recurrent_state;
mod rotary;
mod segments;
pub mod simd;
mod stats;
mod strip;
pub mod tensor;
#[cfg(test)]
mod testing;
mod weights;
mod wide;
mod work;
mod workspace;

pub use kv_cache::CpuKvCache;
pub use matrix::{PackedMatrix, packed_bytes};
pub use pool::Pool;
pub use recurrent_state::CpuRecurrentState;
pub use simd::Simd;
pub use tensor::CpuTensor;
pub use weights::{WeightMap, WeightStore, weight_store_bytes};

use crate::{
    BlockId, Device, DeviceError, DeviceTensor, FullAttention, KvShape, LinearAttention,
    LinearShape, MatrixPart, RowStats, Segment, SlotId, WorkDone,
};

/// What a CPU device is made with.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the caller's included.
    pub threads: usize,
    /// Logical CPU of each thread, the caller's first; `None` leaves placement to the system.
    pub cpus: Option<Vec<usize>>,
    /// Kernels to use; `None` takes the best this processor runs.
    pub simd: Option<Simd>,
    /// Where packed weights go, or are already; `None` keeps them in memory of this process.
    pub weights: Option<WeightMap>,
}

impl Default for CpuOptions {
    /// One thread, wherever the system puts it, with the best kernels.
    fn default() -> CpuOptions {
        CpuOptions { threads: 1, cpus: None, simd: None, weights: None }
    }
}

/// One rank's share of the machine.
pub struct CpuDevice {
    pool: Pool,
    simd: Simd,
    weights: matrix::Weights,
    work: work::Counters,
}

impl CpuDevice {
    /// Starts the threads. The calling thread becomes the first of them: it is the one to call the
    /// kernels, and it is pinned if CPUs are given.
    pub fn new(options: CpuOptions) -> Result<CpuDevice, DeviceError> {
        let simd = options.simd.unwrap_or_else(Simd::detect);
        if !simd.is_supported() {
            return Err(failed(format!("this processor has no {simd}")));
        }
        let pool = Pool::new(options.threads, options.cpus)?;
        let weights = match options.weights {
            Some(map) => matrix::Weights::Kept(map),
            None => matrix::Weights::Own(arena::Arena::default()),
        };
        Ok(CpuDevice { pool, simd, weights, work: Default::default() })
    }

    /// The threads of this device.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The kernels in use.
    pub fn simd(&self) -> Simd {
        self.simd
    }
}

/// An error of this device.
pub(crate) fn failed(detail: String) -> DeviceError {
    DeviceError::Failed { device: "cpu".to_string(), detail }
}

impl Device for CpuDevice {
    type Tensor = CpuTensor;
    type Matrix = PackedMatrix;
    type KvCache = CpuKvCache;
    type RecurrentState = CpuRecurrentState;

    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu, {threads} thread{}, {}", if threads == 1 { "" } else { "s" }, self.simd)
    }

    fn work(&self) -> WorkDone {
        self.work.read()
    }

    fn tensor(&self, rows: usize, cols: usize) -> Result<CpuTensor, DeviceError> {
        CpuTensor::zeroed(rows, cols)
    }

    fn upload(&self, data: &[f32], cols: usize) -> Result<CpuTensor, DeviceError> {
        CpuTensor::from_slice(data, cols)
    }

    fn download(&self, src: &CpuTensor, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        if row >= src.rows() || out.len() != src.cols() {
            return Err(DeviceError::Shape {
                op: "download",
                detail: format!(
                    "row {row} of [{}, {}] into {} numbers",
                    src.rows(),
                    src.cols(),
                    out.len()
                ),
            });
        }
        out.copy_from_slice(src.row(row));
        Ok(())
    }

    fn pack(&self, parts: &[MatrixPart<'_>]) -> Result<PackedMatrix, DeviceError> {
        PackedMatrix::pack(&self.pool, &self.weights, parts)
    }

    fn weights_loaded(&self) -> Result<(), DeviceError> {
        self.weights.loaded()
    }

    fn packed_bytes(&self, outputs: usize, inputs: usize) -> u64 {
        packed_bytes(outputs, inputs)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<CpuKvCache, DeviceError> {
        CpuKvCache::new(shape)
    }

    fn recurrent_state(
        &self,
        shape: LinearShape,
        layers: usize,
        slots: usize,
    ) -> Result<CpuRecurrentState, DeviceError> {
        CpuRecurrentState::new(shape, layers, slots)
    }

    fn fork_state(
        &self,
        state: &mut CpuRecurrentState,
        from: SlotId,
        to: SlotId,
    ) -> Result<(), DeviceError> {
        state.fork(from, to)
    }

    fn copy_block(
        &self,
        cache: &mut CpuKvCache,
        from: BlockId,
        to: BlockId,
    ) -> Result<(), DeviceError> {
        cache.copy_block(from, to)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        // A kernel has finished when its call returns.
        Ok(())
    }

    fn embed(
        &self,
        table: &PackedMatrix,
        first_id: u32,
        ids: &[u32],
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        embed::embed(self, table, first_id, ids, out)
    }

    fn rms_norm(
        &self,
        x: &CpuTensor,
        weight: &CpuTensor,
        eps: f32,
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        norm::rms_norm(self, x, weight, eps, out)
    }

    fn matmul(
        &self,
        x: &CpuTensor,
        w: &PackedMatrix,
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        matmul::matmul(self, x, w, out)
    }

    fn add(&self, x: &mut CpuTensor, y: &CpuTensor) -> Result<(), DeviceError> {
        elementwise::add(self, x, y)
    }

    fn add_bias(&self, x: &mut CpuTensor, bias: &CpuTensor) -> Result<(), DeviceError> {
        elementwise::add_bias(self, x, bias)
    }

    fn swiglu(&self, gate_up: &CpuTensor, out: &mut CpuTensor) -> Result<(), DeviceError> {
        elementwise::swiglu(self, gate_up, out)
    }

    fn gather_rows(
        &self,
        x: &CpuTensor,
        rows: &[usize],
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        elementwise::gather_rows(self, x, rows, out)
    }

    fn rotary(
        &self,
        segments: &[Segment<'_>],
        frequencies: &[f32],
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        rotary::rotary(self, segments, frequencies, out)
    }

    fn full_attention(
        &self,
        op: &FullAttention<'_, Self>,
        qkv: &CpuTensor,
        segments: &[Segment<'_>],
        cache: &mut CpuKvCache,
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        attention::full_attention(self, op, qkv, segments, cache, out)
    }

    fn linear_attention(
        &self,
        op: &LinearAttention<'_, Self>,
        projection: &CpuTensor,
        segments: &[Segment<'_>],
        state: &mut CpuRecurrentState,
        out: &mut CpuTensor,
    ) -> Result<(), DeviceError> {
        delta_rule::linear_attention(self, op, projection, segments, state, out)
    }

    fn row_stats(
        &self,
        logits: &CpuTensor,
        targets: &[Option<usize>],
    ) -> Result<Vec<RowStats>, DeviceError> {
        stats::row_stats(self, logits, targets)
    }
}
