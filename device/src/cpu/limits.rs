//! What this machine can do at best: the marks a benchmark holds the kernels against.
//!
//! Both are the best of many short samples, because anything else running on the machine can only
//! make a sample slower. A kernel that beats one of them by more than noise proves the limit wrong.

mod chains;

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Pool;
use super::memory::Memory;
use super::prefetch::{prefetch, prefetch_far};
use crate::DeviceError;

/// How fast all threads together can read memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// The better of the two below.
    pub bytes_per_second: f64,
    /// Reading in order, the processor's own prefetcher alone at work.
    pub plain: f64,
    /// Reading with prefetch instructions ahead of the loads, in one or in four streams a thread.
    pub prefetched: f64,
    /// Size of what was read: [`CACHES`] times the last-level cache.
    pub buffer_bytes: u64,
}

/// How fast all threads together can do float32 arithmetic out of registers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopPeak {
    /// Additions and multiplications a second.
    pub flops_per_second: f64,
    /// The instructions that reached it.
    pub instructions: &'static str,
}

/// Size of what is read, in last-level caches. At four, caches that keep what they expect to see again
/// still serve a fifth of it (78 GB/s where 62 come from memory).
pub const CACHES: u64 = 16;

/// Assumed where the system does not tell the size of its caches.
const ASSUMED_CACHE: u64 = 64 << 20;

/// Samples of each kind that are taken however short the time.
const MIN_ROUNDS: usize = 3;

/// Measures the read bandwidth for about `seconds`.
pub fn read_bandwidth(threads: usize, seconds: f64) -> Result<Bandwidth, DeviceError> {
    let cache = last_level_cache().unwrap_or(ASSUMED_CACHE);
    read_bandwidth_of(CACHES * cache, threads, seconds)
}

fn read_bandwidth_of(bytes: u64, threads: usize, seconds: f64) -> Result<Bandwidth, DeviceError> {
    let pool = Pool::new(threads, None)?;
    // Whole blocks a thread, so that every way of reading covers the same bytes.
    let share = (bytes as usize).div_ceil(threads).next_multiple_of(1 << 20) / size_of::<u64>();
    let mut memory = Memory::<u64>::zeroed("measuring the read bandwidth", share * threads)?;
    // Pages that were never written may all be one zero page, which sits in the cache.
    memory.as_mut_slice().fill(1);
    let buffer = memory.as_slice();
    let buffer_bytes = size_of_val(buffer) as u64;

    let mut best = [0.0f64; WAYS.len()];
    repeat(seconds, || {
        for (best, way) in best.iter_mut().zip(&WAYS) {
            let start = Instant::now();
            pool.run(threads, &|thread| {
                black_box((way.read)(&buffer[thread * share..(thread + 1) * share]));
            });
            *best = best.max(buffer_bytes as f64 / start.elapsed().as_secs_f64());
        }
    });
    let best_of = |prefetched: bool| {
        let chosen = WAYS.iter().zip(best).filter(|(way, _)| way.prefetched == prefetched);
        chosen.map(|(_, best)| best).fold(0.0, f64::max)
    };
    let (plain, prefetched) = (best_of(false), best_of(true));
    Ok(Bandwidth { bytes_per_second: plain.max(prefetched), plain, prefetched, buffer_bytes })
}

/// Measures the arithmetic peak for about `seconds`.
pub fn fma_peak(threads: usize, seconds: f64) -> Result<FlopPeak, DeviceError> {
    let pool = Pool::new(threads, None)?;
    let ways = chains::available();
    let mut peak = FlopPeak { flops_per_second: 0.0, instructions: "" };
    repeat(seconds, || {
        for way in &ways {
            let start = Instant::now();
            pool.run(threads, &|_| {
                black_box((way.run)(way.rounds));
            });
            let flops = (threads as u64 * way.rounds * way.flops_a_round) as f64;
            let flops_per_second = flops / start.elapsed().as_secs_f64();
            if flops_per_second > peak.flops_per_second {
                peak = FlopPeak { flops_per_second, instructions: way.name };
            }
        }
    });
    Ok(peak)
}

/// Bytes of the largest cache this processor reports.
pub fn last_level_cache() -> Option<u64> {
    let indexes = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    indexes
        .flatten()
        .filter_map(|index| std::fs::read_to_string(index.path().join("size")).ok())
        .filter_map(|size| parse_size(size.trim()))
        .max()
}

/// `32768K` and `64M` as the kernel writes them.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) => (number, text.as_bytes()[text.len() - 1]),
        None => (text, b' '),
    };
    let shift = match unit {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    number.parse::<u64>().ok()?.checked_shl(shift)
}

/// Calls `round` until the time is up, and at least [`MIN_ROUNDS`] times.
fn repeat(seconds: f64, mut round: impl FnMut()) {
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < MIN_ROUNDS || start.elapsed() < limit {
        round();
        rounds += 1;
    }
}

/// One way to read every word of a thread's part once.
struct Way {
    prefetched: bool,
    read: fn(&[u64]) -> u64,
}

/// All that have been fastest anywhere: what is best differs from one processor to the next.
const WAYS: [Way; 7] = [
    Way { prefetched: false, read: |part| read::<1>(part, |_| ()) },
    Way { prefetched: false, read: |part| read::<4>(part, |_| ()) },
    Way { prefetched: true, read: |part| read::<1>(part, |line| prefetch(ahead(line, 512))) },
    Way { prefetched: true, read: |part| read::<4>(part, |line| prefetch(ahead(line, 512))) },
    Way { prefetched: true, read: |part| read::<1>(part, |line| prefetch(ahead(line, 4096))) },
    Way { prefetched: true, read: |part| read::<1>(part, |line| prefetch_far(ahead(line, 1024))) },
    Way { prefetched: true, read: |part| read::<4>(part, |line| prefetch_far(ahead(line, 1024))) },
];

fn ahead(line: *const u64, bytes: usize) -> *const u64 {
    line.wrapping_byte_add(bytes)
}

/// Words of a cache line.
const LINE: usize = 8;

/// Reads `STREAMS` equal pieces of `part` side by side, with `fetch` called before each line.
fn read<const STREAMS: usize>(part: &[u64], fetch: impl Fn(*const u64)) -> u64 {
    let length = part.len() / STREAMS;
    let pieces: [&[u64]; STREAMS] = std::array::from_fn(|s| &part[s * length..(s + 1) * length]);
    let mut sums = [[0u64; LINE]; STREAMS];
    for at in (0..length).step_by(LINE) {
        for (piece, sum) in pieces.iter().zip(&mut sums) {
            let line = &piece[at..at + LINE];
            fetch(line.as_ptr());
            sum.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
        }
    }
    sums.as_flattened().iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("8M"), Some(8 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size(""), None);
    }

    #[test]
    fn every_way_of_reading_reads_every_word() {
        let mut part: Vec<u64> = (0..4 * LINE as u64 * 100).map(|x| x * x).collect();
        let all = part.iter().fold(0, |all, word| all ^ word);
        for way in &WAYS {
            assert_eq!((way.read)(&part), all);
        }
        part[777] ^= 1 << 60;
        for way in &WAYS {
            assert_eq!((way.read)(&part), all ^ (1 << 60));
        }
    }

    #[test]
    fn the_buffer_is_as_large_as_asked_and_the_limits_are_positive() {
        let bandwidth = read_bandwidth_of(9 << 20, 2, 0.0).unwrap();
        assert_eq!(bandwidth.buffer_bytes, 10 << 20);
        assert!(bandwidth.plain > 0.0 && bandwidth.prefetched > 0.0);
        assert_eq!(bandwidth.bytes_per_second, bandwidth.plain.max(bandwidth.prefetched));
        assert!(fma_peak(2, 0.0).unwrap().flops_per_second > 0.0);
    }
}
