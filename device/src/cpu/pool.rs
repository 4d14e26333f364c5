//! The threads of one rank.
//!
//! A step runs hundreds of kernels of tens of microseconds, so handing one to the pool must not cost
//! a system call: idle workers look for the next job for a moment before they sleep, and the caller
//! never waits for a worker that has not begun. A worker *joins* a job by counting itself in; when the
//! tasks are used up the caller closes the job to further joiners and waits only for those inside.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub use super::disjoint::DisjointMut;
use super::failed;
use crate::DeviceError;

/// Looks at the state word before a thread sleeps: some tens of microseconds, longer than the gap
/// between two kernels of a step and far shorter than the gap between two steps.
const SPINS: u32 = 2000;

/// The most threads: far more than any machine has cores, and the state word counts them in 16 bits.
const MAX_THREADS: usize = 4096;

// The state word: a job number in the upper half, two flags, and the workers inside the job.
const ONE_JOB: u64 = 1 << 32;
const OPEN: u64 = 1 << 31;
const STOP: u64 = 1 << 30;
const INSIDE: u64 = 0xffff;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// What `run` was given, for the time it runs.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// The next task to claim.
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    door: Mutex<()>,
    /// Workers asleep (or about to be) at `job_opened`.
    sleepers: AtomicUsize,
    job_opened: Condvar,
    caller_sleeps: AtomicBool,
    job_left: Condvar,
    spins: u32,
}

// SAFETY: `job` is the only member that is not Sync. `run` writes it while no job is open and no
// worker is inside one (only one `run` does so at a time, see `Pool::turn`); workers read it only after
// they joined an open job, which happens after that write (release store and acquire exchange of
// `state`), and `run` waits for them before it returns, so the task they call is alive.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is never used by a thread that has not joined.
unsafe impl Send for Shared {}

/// A fixed set of threads that run the tasks of one kernel at a time. The thread that calls
/// [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run that uses the workers.
    turn: Mutex<()>,
}

impl Pool {
    /// `threads` threads, the calling one included. With `cpus`, one logical CPU for each, the
    /// calling thread is pinned to the first (for good: it is to be the rank's compute thread) and
    /// worker `i` to `cpus[i]`.
    pub fn new(threads: usize, cpus: Option<Vec<usize>>) -> Result<Pool, DeviceError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(failed(format!("{threads} threads asked for, not 1 to {MAX_THREADS}")));
        }
        if let Some(cpus) = &cpus
            && cpus.len() != threads
        {
            return Err(failed(format!(
                "{} cpus {cpus:?} given for {threads} threads: give one each",
                cpus.len()
            )));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            door: Mutex::new(()),
            sleepers: AtomicUsize::new(0),
            job_opened: Condvar::new(),
            caller_sleeps: AtomicBool::new(false),
            job_left: Condvar::new(),
            // With more threads than cores a spinning thread keeps a working one from its core.
            spins: if threads <= cores { SPINS } else { 0 },
        });
        // From here on a failure drops the pool, which stops the workers already started.
        let mut pool =
            Pool { shared, workers: Vec::with_capacity(threads - 1), turn: Mutex::new(()) };
        let (report, reports) = mpsc::channel();
        for index in 1..threads {
            let shared = pool.shared.clone();
            let cpu = cpus.as_ref().map(|cpus| cpus[index]);
            let report = report.clone();
            let worker = std::thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || {
                    let pinned = cpu.map_or(Ok(()), pin);
                    let go = pinned.is_ok();
                    // The receiver is gone only when `new` has failed already.
                    let _ = report.send(pinned);
                    // `new` reads until every worker has let go.
                    drop(report);
                    if go {
                        shared.work();
                    }
                })
                .map_err(|error| failed(format!("cannot start compute thread {index}: {error}")))?;
            pool.workers.push(worker);
        }
        drop(report);
        for pinned in reports {
            pinned?;
        }
        if let Some(cpus) = &cpus {
            pin(cpus[0])?;
        }
        Ok(pool)
    }

    /// Threads that compute, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for each `i` in `0..tasks`, on all threads, and returns when all calls
    /// have returned. Which thread runs which task is left to chance: tasks are claimed as threads
    /// become free. When a task panics, no further ones are begun and the panic goes on in the caller.
    ///
    /// Called from inside a task, or while another thread has the workers, it runs all tasks on the
    /// calling thread.
    pub fn run(&self, tasks: usize, task: &Task<'_>) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        let Some(_turn) = self.take_turn() else {
            (0..tasks).for_each(task);
            return;
        };
        self.shared.run(tasks, task);
        if let Some(payload) = lock(&self.shared.panic).take() {
            resume_unwind(payload);
        }
    }

    fn take_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            // A task panicked during an earlier run: the lock guards nothing that could be half done.
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        self.shared.wake_workers();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks; there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The caller's side of one job.
    fn run(&self, tasks: usize, task: &Task<'_>) {
        // SAFETY: only the lifetime is erased; `leave_job` below returns after the last use.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let job = Job { task, tasks };
        // SAFETY: no job is open and no worker inside one, see `Sync for Shared`.
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) & !(ONE_JOB - 1)).wrapping_add(ONE_JOB);
        self.state.store(number | OPEN, Ordering::SeqCst);
        self.wake_workers();
        self.claim_tasks(job);
        self.leave_job();
    }

    /// Closes the job and waits for the workers inside it.
    fn leave_job(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::SeqCst);
        for _ in 0..self.spins {
            if state & INSIDE == 0 {
                break;
            }
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        if state & INSIDE != 0 {
            let mut door = lock(&self.door);
            self.caller_sleeps.store(true, Ordering::SeqCst);
            while self.state.load(Ordering::SeqCst) & INSIDE != 0 {
                door = self.job_left.wait(door).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut done = 0;
        while let Some(open) = self.wait_for_job(done) {
            if self
                .state
                .compare_exchange(open, open + 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            done = open / ONE_JOB;
            // SAFETY: this worker is inside the job, see `Sync for Shared`.
            if let Some(job) = unsafe { *self.job.get() } {
                self.claim_tasks(job);
            }
            let before = self.state.fetch_sub(1, Ordering::SeqCst);
            // The last one out of a closed job wakes the caller.
            if before & (OPEN | INSIDE) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
                let _door = lock(&self.door);
                self.job_left.notify_one();
            }
        }
    }

    /// The state word once it shows an open job other than number `done`; `None` when the pool stops.
    fn wait_for_job(&self, done: u64) -> Option<u64> {
        let ready =
            |state: u64| state & STOP != 0 || (state & OPEN != 0 && state / ONE_JOB != done);
        let mut state = self.state.load(Ordering::Acquire);
        for _ in 0..self.spins {
            if ready(state) {
                break;
            }
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        if !ready(state) {
            let mut door = lock(&self.door);
            // Counted in before the last look, so that either this look sees the job or the caller,
            // who opened it before it looks at the count, sees the sleeper.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            loop {
                state = self.state.load(Ordering::SeqCst);
                if ready(state) {
                    break;
                }
                door = self.job_opened.wait(door).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        (state & STOP == 0).then_some(state)
    }

    fn wake_workers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _door = lock(&self.door);
            self.job_opened.notify_all();
        }
    }

    /// Claims and runs tasks until none is left. A panic is kept for the caller.
    fn claim_tasks(&self, job: Job) {
        // SAFETY: the caller of `run` is still inside it (see `Sync for Shared`), so the task lives.
        let task = unsafe { &*job.task };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                if index >= job.tasks {
                    break;
                }
                task(index);
            }
        }));
        if let Err(payload) = outcome {
            self.next.fetch_max(job.tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

/// Locks a mutex that guards nothing a panic could leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Binds the calling thread to one logical CPU.
fn pin(cpu: usize) -> Result<(), DeviceError> {
    let bind = || {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &set)
    };
    bind().map_err(|error| failed(format!("cpu {cpu} is not available to this process: {error}")))
}

#[cfg(test)]
mod tests;
