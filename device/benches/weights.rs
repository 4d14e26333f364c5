//! What it costs a decoded token that weights lie in a store which outlives the process, beside memory
//! of the process's own: `cargo bench -p pocket-device --bench weights`.
//!
//! Both take turns, many times, and the best of each counts: whatever else runs on the machine can only
//! make a pass slower.
#![expect(clippy::unwrap_used, reason = "nothing to recover from in a benchmark")]

use std::thread::available_parallelism;
use std::time::Instant;

use pocket_device::cpu::{
    CpuDevice, CpuOptions, CpuTensor, PackedMatrix, WeightMap, WeightStore, limits,
    weight_store_bytes,
};
use pocket_device::{Device, MatrixPart, StorageType};

/// Of the 0.8B model split over two ranks.
const SHAPES: [(usize, usize); 4] = [(4128, 1024), (3584, 1024), (1024, 1792), (124_160, 1024)];
const TURNS: usize = 15;

struct Side {
    name: &'static str,
    device: CpuDevice,
    matrices: Vec<PackedMatrix>,
    seconds: f64,
}

fn main() {
    let cores = available_parallelism().map_or(1, usize::from);
    for threads in [1, cores] {
        for shape in SHAPES {
            for rows in [1, 8] {
                compare(threads, shape, rows);
            }
        }
    }
}

fn compare(threads: usize, (outputs, inputs): (usize, usize), rows: usize) {
    // Enough that none is in the cache when its turn comes again.
    let cache = 4 * limits::last_level_cache().unwrap_or(64 << 20);
    let copies = cache.div_ceil(pocket_device::cpu::packed_bytes(outputs, inputs)) as usize;
    let store =
        WeightStore::create(weight_store_bytes(&vec![(outputs, inputs); copies]), [0; 32]).unwrap();
    let source: Vec<u8> = (0..outputs * inputs * 2).map(|i| [i as u8, 0x3f][i % 2]).collect();
    let side = |name, weights| {
        let device =
            CpuDevice::new(CpuOptions { threads, weights, ..CpuOptions::default() }).unwrap();
        let part = MatrixPart {
            bytes: &source,
            dtype: StorageType::Bf16,
            row_len: inputs,
            rows: 0..outputs,
            cols: 0..inputs,
        };
        let pack = || device.pack(std::slice::from_ref(&part)).unwrap();
        let matrices = (0..copies).map(|_| pack()).collect();
        device.weights_loaded().unwrap();
        Side { name, device, matrices, seconds: f64::INFINITY }
    };
    let open = || WeightMap::open(&store.path(), [0; 32]).unwrap();
    // What a rank that was started again has: packed by another.
    drop(side("", Some(open())));
    let map = open();
    let mut sides = [side("own memory", None), side("store", Some(map.clone()))];
    let x = sides[0].device.upload(&vec![0.5; rows * inputs], inputs).unwrap();
    let mut out = sides[0].device.tensor(rows, outputs).unwrap();
    for _ in 0..TURNS {
        for side in &mut sides {
            pass(side, &x, &mut out);
        }
    }
    let bytes = copies as f64 * outputs as f64 * inputs as f64 * 2.0;
    let found = sides.map(|side| format!("{} {:.1} GB/s", side.name, bytes / side.seconds / 1e9));
    println!(
        "{threads} thread(s), {inputs} to {outputs}, {rows} row(s): {}, {} of {} MB in small pages",
        found.join(", "),
        map.small_page_bytes() / 1_000_000,
        (bytes / 1e6) as u64,
    );
}

/// All matrices once.
fn pass(side: &mut Side, x: &CpuTensor, out: &mut CpuTensor) {
    let start = Instant::now();
    for matrix in &side.matrices {
        side.device.matmul(x, matrix, out).unwrap();
    }
    side.seconds = side.seconds.min(start.elapsed().as_secs_f64());
}
