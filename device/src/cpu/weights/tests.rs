use std::os::unix::fs::{FileExt, MetadataExt};

use proptest::prelude::*;

use super::super::testing::{Numbers, bits};
use super::super::{CpuDevice, CpuOptions, PackedMatrix};
use super::*;
use crate::{Device, MatrixPart, StorageType};

const ME: [u8; 32] = *b"what the weights are of, in full";

fn store(sizes: &[(usize, usize)]) -> WeightStore {
    WeightStore::create(weight_store_bytes(sizes), ME).unwrap()
}

fn device(store: &WeightStore) -> CpuDevice {
    let weights = Some(WeightMap::open(&store.path(), ME).unwrap());
    CpuDevice::new(CpuOptions { threads: 2, weights, ..CpuOptions::default() }).unwrap()
}

/// Stored matrices of these sizes, their numbers made from the seed.
fn sources(sizes: &[(usize, usize)], seed: u64) -> Vec<Vec<u8>> {
    let mut numbers = Numbers(seed);
    let mut bytes =
        |count| numbers.take(count, -2.0, 2.0).iter().flat_map(|x| x.to_le_bytes()).collect();
    sizes.iter().map(|&(outputs, inputs)| bytes(outputs * inputs)).collect()
}

fn pack(
    device: &CpuDevice,
    (outputs, inputs): (usize, usize),
    bytes: &[u8],
) -> Result<PackedMatrix, DeviceError> {
    let (dtype, row_len) = (StorageType::F32, inputs);
    device.pack(&[MatrixPart { bytes, dtype, row_len, rows: 0..outputs, cols: 0..inputs }])
}

fn pack_all(
    device: &CpuDevice,
    sizes: &[(usize, usize)],
    sources: &[Vec<u8>],
) -> Vec<PackedMatrix> {
    sizes.iter().zip(sources).map(|(&size, bytes)| pack(device, size, bytes).unwrap()).collect()
}

fn tiles(matrices: &[PackedMatrix]) -> Vec<&[u16]> {
    matrices.iter().map(PackedMatrix::tiles).collect()
}

fn refusal<T>(result: Result<T, DeviceError>) -> String {
    match result.err() {
        Some(DeviceError::Weights { detail, .. }) => detail,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn kept_weights_are_those_packed_without_and_are_found_by_the_next_process(
        sizes in prop::collection::vec((1usize..100, 1usize..200), 1..8),
        seed: u64,
    ) {
        let sources = sources(&sizes, seed);
        let own = CpuDevice::new(CpuOptions::default()).unwrap();
        let expected = pack_all(&own, &sizes, &sources);

        let store = store(&sizes);
        let first = device(&store);
        let matrices = pack_all(&first, &sizes, &sources);
        prop_assert_eq!(tiles(&matrices), tiles(&expected));
        prop_assert!(!store.is_complete());
        first.weights_loaded().unwrap();
        prop_assert!(store.is_complete());
        drop((first, matrices));

        // What it is told to pack is not what it finds, and it does not look.
        let second = device(&store);
        let others: Vec<_> = sources.iter().map(|bytes| vec![0xff; bytes.len()]).collect();
        let found = pack_all(&second, &sizes, &others);
        second.weights_loaded().unwrap();
        prop_assert_eq!(tiles(&found), tiles(&expected));

        let size = sizes[0];
        let x = Numbers(!seed).tensor(3, size.1, -1.0, 1.0);
        let product = |device: &CpuDevice, w: &PackedMatrix| {
            let mut out = device.tensor(3, size.0).unwrap();
            device.matmul(&x, w, &mut out).unwrap();
            bits(out.as_slice())
        };
        prop_assert_eq!(product(&second, &found[0]), product(&own, &expected[0]));
    }

    #[test]
    fn stores_are_as_large_as_their_matrices_need_and_less_than_a_huge_page_larger(
        sizes in prop::collection::vec((1usize..300, 1usize..3000), 0..20),
    ) {
        let store = store(&sizes);
        let map = WeightMap::open(&store.path(), ME).unwrap();
        for &(outputs, inputs) in &sizes {
            map.take(outputs, inputs).unwrap();
        }
        // Nothing that fills a huge page fits behind them.
        prop_assert!(refusal(map.take(32, HUGE_PAGE / 64)).contains("there is room up to"));
    }
}

#[test]
fn what_was_not_finished_is_packed_again_onto_zeros() {
    // Padding in both.
    let sizes = [(33, 500), (70, 2000)];
    let store = store(&sizes);
    let other = [(95, 700), (60, 1000)];
    pack_all(&device(&store), &other, &sources(&other, 1));

    let sources = sources(&sizes, 2);
    let found = pack_all(&device(&store), &sizes, &sources);
    let own = CpuDevice::new(CpuOptions::default()).unwrap();
    assert!(tiles(&found) == tiles(&pack_all(&own, &sizes, &sources)));
    assert!(!store.is_complete());
}

#[test]
fn other_matrices_than_those_packed_are_refused() {
    let sizes = [(33, 50), (64, 20)];
    let store = store(&sizes);
    let sources = sources(&sizes, 3);
    let first = device(&store);
    pack_all(&first, &sizes, &sources);
    first.weights_loaded().unwrap();
    assert!(refusal(pack(&first, sizes[1], &sources[1])).contains("there are no more"));
    drop(first);

    let second = device(&store);
    let detail = refusal(pack(&second, (50, 33), &sources[0]));
    assert_eq!(detail, "matrix 0: expected [50, 33], found [33, 50]");
    pack(&second, sizes[0], &sources[0]).unwrap();
    let detail = refusal(second.weights_loaded());
    assert!(detail.starts_with("1 matrices end at byte"), "{detail}");
    drop(second);

    let third = device(&store);
    pack_all(&third, &sizes, &sources);
    assert!(refusal(pack(&third, (1, 1), &[0; 4])).contains("takes 64 bytes from byte"));
}

#[test]
fn stores_of_others_and_files_that_are_none_are_refused() {
    let fresh = || store(&[(40, 40)]);
    let store = fresh();
    let other = *b"what the weights are of, or not?";
    assert!(refusal(WeightMap::open(&store.path(), other)).contains("another checkpoint"));

    let used = WeightMap::open(&store.path(), ME).unwrap();
    assert!(refusal(WeightMap::open(&store.path(), ME)).contains("another process uses them"));
    drop(used);

    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(HUGE_PAGE as u64).unwrap();
    let path = file.path().to_str().unwrap();
    assert!(refusal(WeightMap::open(path, ME)).contains("not a file that pocketd made"));
    let missing = WeightMap::open("/proc/self/fd/no-such-file", ME).unwrap_err();
    assert!(missing.to_string().contains("no-such-file"), "{missing}");

    // One word of the header at a time: magic, version, tile, bytes, end.
    let damaged = ["does not begin", "version", "outputs of a tile", "its header says", "they end"];
    for (word, expected) in [0, 1, 2, 3, 8].into_iter().zip(damaged) {
        let store = fresh();
        let file = std::fs::OpenOptions::new().write(true).open(store.path()).unwrap();
        file.write_all_at(&(1u64 << 40).to_le_bytes(), 8 * word).unwrap();
        let detail = refusal(WeightMap::open(&store.path(), ME));
        assert!(detail.contains(expected), "{word}: {detail}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let error = WeightStore::create(weight_store_bytes(&[(1 << 40, 1 << 40)]), ME).unwrap_err();
    assert!(error.to_string().contains("a rank's packed weights"), "{error}");
    // Room for no header.
    let empty = WeightStore::create(0, ME).unwrap();
    assert!(refusal(WeightMap::open(&empty.path(), ME)).contains("its header says 0"));
}

#[test]
fn a_store_cannot_be_cut_short_and_goes_with_the_last_that_uses_it() {
    let sizes = [(64, 64)];
    let store = store(&sizes);
    let path = store.path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert!(file.set_len(0).is_err());
    let inode = file.metadata().unwrap().ino();
    drop(file);
    let held = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().any(|line| {
            line.contains("memfd:pocketd-weights")
                && line.split_whitespace().nth(4) == Some(&inode.to_string())
        });
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = files.flatten().any(|file| {
            let target = std::fs::read_link(file.path()).unwrap_or_default();
            target.to_string_lossy().contains("memfd:pocketd-weights")
                && std::fs::metadata(file.path()).is_ok_and(|facts| facts.ino() == inode)
        });
        mapped || open
    };
    let device = device(&store);
    let source = &sources(&sizes, 4)[0];
    let matrix = pack(&device, sizes[0], source).unwrap();
    drop((store, device));
    // The matrix keeps what it needs.
    assert!(held());
    assert!(matrix.tiles().iter().any(|&x| x != 0));
    drop(matrix);
    assert!(!held());
}

#[test]
fn an_empty_store_takes_no_memory_but_its_header() {
    let store = store(&[(1 << 20, 4096)]);
    let file = std::fs::File::open(store.path()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), store.bytes());
    assert!(file.metadata().unwrap().blocks() * 512 <= HUGE_PAGE as u64);
    let map = WeightMap::open(&store.path(), ME).unwrap();
    assert!(!map.was_complete() && map.small_page_bytes() == 0);
    assert!(file.metadata().unwrap().blocks() * 512 <= HUGE_PAGE as u64);
}
