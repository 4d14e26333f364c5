//! A mapped segment: its header, and the words and slots that parties meet in.

use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::Duration;

use memmap2::MmapRaw;
use shared_memory::Shmem;

use crate::futex;
use crate::layout::{DATA_OFFSET, Layout, MAX_WORLD};
use crate::meeting::{CommonWords, RankWords, Slot, Space};
use crate::progress::ProgressWords;

/// "pocketAR", the first bytes of every segment.
const MAGIC: u64 = u64::from_le_bytes(*b"pocketAR");

/// Raised with every change of what lies where or means what.
const VERSION: u32 = 1;

/// Looks at a stamp before sleeping, where every rank can have a core: some tens of microseconds,
/// about what a sleep and a wake cost.
const SPINS: u32 = 1000;

/// The same where ranks share cores: whom one waits for may need the core one spins on.
const SPINS_CROWDED: u32 = 32;

/// What says that a segment is ours, and whose. Written once, before any rank is told the name.
#[repr(C, align(128))]
struct Header {
    /// Written last: a segment without it was never finished.
    magic: AtomicU64,
    version: AtomicU32,
    world: AtomicU32,
    epoch: AtomicU64,
    bytes: AtomicU64,
    plane_len: AtomicU64,
    direct_len: AtomicU64,
    logits_len: AtomicU64,
    /// Cores the coordinator may use. A rank cannot tell: it has pinned itself.
    cores: AtomicU64,
}

/// Everything before [`DATA_OFFSET`].
#[repr(C)]
struct Words {
    header: Header,
    common: CommonWords<AtomicU64>,
    ranks: [RankWords<AtomicU64>; MAX_WORLD],
    progress: [ProgressWords; MAX_WORLD],
}

const _: () = assert!(size_of::<Words>() <= DATA_OFFSET);

/// A mapping of a segment. Its memory is touched through atomics and, by the protocols in
/// [`crate::reduce`] and [`crate::pieces`], through copies that stamps order.
pub(crate) struct Mapping {
    memory: Memory,
    /// What it was made or found under, for messages.
    name: String,
    layout: Layout,
    spins: u32,
}

/// The bytes, mapped for as long as this lives.
enum Memory {
    /// In the process that made the segment.
    Made(Shmem),
    /// In a process that attached to it.
    Found(MmapRaw),
}

impl Memory {
    fn start(&self) -> *mut u8 {
        match self {
            Memory::Made(memory) => memory.as_ptr(),
            Memory::Found(memory) => memory.as_mut_ptr(),
        }
    }
}

// SAFETY: `Shmem` is not `Send` only for the raw pointer in it, which stays mapped as long as it lives
// and may be used from any thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference only atomics are touched, and slots by unsafe functions whose
// callers promise that no other party uses the same numbers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes a fresh, zeroed and fully allocated segment of `layout.bytes()`, and writes its header.
    pub fn create(memory: Shmem, layout: Layout, epoch: u64, cores: usize) -> Mapping {
        assert_eq!(memory.len(), layout.bytes());
        let (name, spins) = (memory.get_os_id().to_owned(), spins(layout.world, cores));
        let mapping = Mapping { memory: Memory::Made(memory), name, layout, spins };
        let header = &mapping.words().header;
        header.version.store(VERSION, Relaxed);
        header.world.store(layout.world as u32, Relaxed);
        header.epoch.store(epoch, Relaxed);
        header.bytes.store(layout.bytes() as u64, Relaxed);
        header.plane_len.store(layout.plane_len as u64, Relaxed);
        header.direct_len.store(layout.direct_len as u64, Relaxed);
        header.logits_len.store(layout.logits_len as u64, Relaxed);
        header.cores.store(cores as u64, Relaxed);
        header.magic.store(MAGIC, Release);
        mapping
    }

    /// Takes a segment another process made, if its header says that it is the one for `layout` and
    /// `epoch`; otherwise says what is wrong with it. `name` is what it was found under.
    pub fn open(
        memory: MmapRaw,
        name: &str,
        layout: Layout,
        epoch: u64,
    ) -> Result<Mapping, String> {
        expect("bytes", layout.bytes() as u64, memory.len() as u64)?;
        let memory = Memory::Found(memory);
        let mut mapping = Mapping { memory, name: name.to_owned(), layout, spins: 0 };
        let header = &mapping.words().header;
        if header.magic.load(Acquire) != MAGIC {
            return Err("it does not begin like a segment of pocketd".into());
        }
        expect("version", VERSION.into(), header.version.load(Relaxed).into())?;
        expect("world", layout.world as u64, header.world.load(Relaxed).into())?;
        expect("epoch", epoch, header.epoch.load(Relaxed))?;
        expect("bytes in the header", layout.bytes() as u64, header.bytes.load(Relaxed))?;
        expect("plane slot", layout.plane_len as u64, header.plane_len.load(Relaxed))?;
        expect("direct limit", layout.direct_len as u64, header.direct_len.load(Relaxed))?;
        expect("logits slot", layout.logits_len as u64, header.logits_len.load(Relaxed))?;
        let cores = usize::try_from(header.cores.load(Relaxed)).unwrap_or(usize::MAX);
        mapping.spins = spins(layout.world, cores);
        Ok(mapping)
    }

    pub fn epoch(&self) -> u64 {
        self.words().header.epoch.load(Relaxed)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// `rank` below [`MAX_WORLD`].
    pub fn progress(&self, rank: usize) -> &ProgressWords {
        &self.words().progress[rank]
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping is page-aligned and at least `DATA_OFFSET` long (both constructors
        // check), lives as long as `self`, and `Words` consists of atomics only, valid in any state.
        unsafe { &*self.memory.start().cast::<Words>() }
    }

    /// Where `len` numbers of a slot lie. Panics if they reach over its end, which is a bug here.
    fn numbers(&self, slot: Slot, at: usize, len: usize) -> *mut f32 {
        let (offset, slot_len) = self.layout.slot(slot);
        assert!(at <= slot_len && len <= slot_len - at, "{at} + {len} in {slot:?}");
        // SAFETY: `offset` is within the mapping (its length is that of the layout), a multiple of
        // the page size, and so aligned; `at` is within the slot.
        unsafe { self.memory.start().add(offset).cast::<f32>().add(at) }
    }
}

fn spins(world: usize, cores: usize) -> u32 {
    if world <= cores { SPINS } else { SPINS_CROWDED }
}

fn expect(what: &str, expected: u64, found: u64) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!("{what}: expected {expected}, found {found}"))
}

impl Space for Mapping {
    type Word = AtomicU64;

    fn world(&self) -> usize {
        self.layout.world
    }

    fn common(&self) -> &CommonWords<AtomicU64> {
        &self.words().common
    }

    fn rank(&self, rank: usize) -> &RankWords<AtomicU64> {
        &self.words().ranks[rank]
    }

    fn plane_len(&self) -> usize {
        self.layout.plane_len
    }

    fn direct_len(&self) -> usize {
        self.layout.direct_len
    }

    fn logits_len(&self) -> usize {
        self.layout.logits_len
    }

    unsafe fn put(&self, slot: Slot, at: usize, from: &[f32]) {
        let to = self.numbers(slot, at, from.len());
        // SAFETY: in bounds and aligned; by the caller's promise nobody else uses these numbers, and
        // a slice of ours does not overlap the mapping.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    unsafe fn get(&self, slot: Slot, at: usize, into: &mut [f32]) {
        let from = self.numbers(slot, at, into.len());
        // SAFETY: in bounds and aligned; by the caller's promise nobody writes these numbers.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    unsafe fn add(&self, slot: Slot, at: usize, into: &mut [f32]) {
        let from = self.numbers(slot, at, into.len());
        // SAFETY: in bounds, aligned, any bits are a valid f32, and by the caller's promise nobody
        // writes these numbers while the slice lives.
        let from = unsafe { slice::from_raw_parts(from, into.len()) };
        into.iter_mut().zip(from).for_each(|(sum, number)| *sum += number);
    }

    fn fence(&self) {
        fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn spins(&self) -> u32 {
        self.spins
    }

    fn pause(&self) {
        std::hint::spin_loop();
    }

    fn sleep(&self, word: &AtomicU64, seen: u64, timeout: Duration) {
        futex::sleep(word, seen, timeout);
    }

    fn wake(&self, word: &AtomicU64) {
        futex::wake(word);
    }
}
