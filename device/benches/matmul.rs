//! Matrix products of the 0.8B model split over two ranks, on one thread and on all cores, beside this
//! machine's limits: `cargo bench -p pocket-device --bench matmul`.
//!
//! One row (a decoded token) should come near the read bandwidth: weights are 2 bytes and used once.
//! 512 rows (a prompt) should come near the arithmetic peak; `item/s` are additions and multiplications.
#![expect(clippy::unwrap_used, reason = "nothing to recover from in a benchmark")]

use std::cell::Cell;
use std::thread::available_parallelism;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pocket_device::cpu::{CpuDevice, CpuOptions, PackedMatrix, limits};
use pocket_device::{Device, MatrixPart, StorageType};

/// Inputs and outputs: fused projections, gate and up, down, and the head, of which a prompt takes only
/// the rows it samples.
const SHAPES: [(usize, usize); 4] = [(1024, 4128), (1024, 3584), (1792, 1024), (1024, 124_160)];

fn main() {
    for threads in thread_counts() {
        let bandwidth = limits::read_bandwidth(threads, 2.0).unwrap();
        let peak = limits::fma_peak(threads, 0.5).unwrap();
        println!(
            "limits of {threads} thread(s): read {:.1} GB/s (plain {:.1}, prefetched {:.1}), \
             {:.1} GFLOP/s ({})",
            bandwidth.bytes_per_second / 1e9,
            bandwidth.plain / 1e9,
            bandwidth.prefetched / 1e9,
            peak.flops_per_second / 1e9,
            peak.instructions,
        );
    }
    divan::main();
}

fn thread_counts() -> Vec<usize> {
    let cores = available_parallelism().map_or(1, usize::from);
    if cores == 1 { vec![1] } else { vec![1, cores] }
}

/// Every shape on one thread and on all.
fn cases(shapes: &[(usize, usize)]) -> Vec<String> {
    let name = |threads, (inputs, outputs)| format!("{threads} thread(s), {inputs} to {outputs}");
    thread_counts()
        .into_iter()
        .flat_map(|threads| shapes.iter().map(move |&shape| name(threads, shape)))
        .collect()
}

/// Enough copies of a matrix that none is in the cache when its turn comes again.
fn matrices(device: &CpuDevice, inputs: usize, outputs: usize) -> Vec<PackedMatrix> {
    let cache = 4 * limits::last_level_cache().unwrap_or(64 << 20);
    let copies = cache.div_ceil(device.packed_bytes(outputs, inputs));
    // Between 0.5 and 2, of both signs.
    let number = |i: usize| (0x3f00 + (i * 7919 % 256) as u16) | ((i % 3) as u16 & 1) << 15;
    let bytes: Vec<u8> = (0..inputs * outputs).flat_map(|i| u16::to_le_bytes(number(i))).collect();
    let part = MatrixPart {
        bytes: &bytes,
        dtype: StorageType::Bf16,
        row_len: inputs,
        rows: 0..outputs,
        cols: 0..inputs,
    };
    (0..copies).map(|_| device.pack(std::slice::from_ref(&part)).unwrap()).collect()
}

/// Decode steps and short prompts: rows by threads and shape.
macro_rules! few_rows {
    ($($name:ident: $rows:expr;)+) => {
        $(
            #[divan::bench(args = cases(&SHAPES), sample_count = 100, sample_size = 1, max_time = 3)]
            fn $name(bencher: Bencher, case: &str) {
                product(bencher, case, $rows);
            }
        )+
    };
}

few_rows! {
    rows_01: 1;
    rows_02: 2;
    rows_03: 3;
    rows_04: 4;
    rows_06: 6;
    rows_08: 8;
    rows_12: 12;
    rows_16: 16;
    rows_32: 32;
}

#[divan::bench(args = cases(&SHAPES[..3]), sample_count = 50, sample_size = 1, max_time = 5)]
fn rows_512(bencher: Bencher, case: &str) {
    product(bencher, case, 512);
}

fn product(bencher: Bencher, case: &str, rows: usize) {
    let mut numbers = case.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let mut next = || numbers.next().unwrap();
    let (threads, inputs, outputs): (usize, usize, usize) = (next(), next(), next());
    let device = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
    let matrices = matrices(&device, inputs, outputs);
    let x = device.upload(&vec![0.5; rows * inputs], inputs).unwrap();
    let mut out = device.tensor(rows, outputs).unwrap();
    let turn = Cell::new(0);
    bencher
        .counter(BytesCount::new(2 * inputs * outputs))
        .counter(ItemsCount::new(2 * inputs * outputs * rows))
        .bench_local(|| {
            turn.set((turn.get() + 1) % matrices.len());
            device.matmul(&x, &matrices[turn.get()], &mut out).unwrap();
        });
}
