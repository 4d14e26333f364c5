//! Sleeping on a word of shared memory (futex(2)).
//!
//! A futex is 32 bits wide: the low half of the 64-bit word is slept on. The operations are the ones
//! without `FUTEX_PRIVATE_FLAG`, since sleeper and waker are different processes.

use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Sleeps until [`wake`], a signal, or the end of `timeout`; returns at once unless the word's low
/// half is that of `seen`.
pub(crate) fn sleep(word: &AtomicU64, seen: u64, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: the address is that of a live, aligned 32-bit half of an atomic, and the timeout
    // outlives the call. The result is not needed: the caller looks again whatever woke it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(word),
            libc::FUTEX_WAIT,
            seen as u32,
            ptr::from_ref(&timeout),
        );
    }
}

/// Wakes all who sleep on the word.
pub(crate) fn wake(word: &AtomicU64) {
    // SAFETY: as above; the kernel does not even read the word.
    unsafe {
        libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX);
    }
}

fn low_half(word: &AtomicU64) -> *const u32 {
    let halves = word.as_ptr().cast::<u32>().cast_const();
    if cfg!(target_endian = "big") {
        // SAFETY: the second half of the same 64-bit word.
        unsafe { halves.add(1) }
    } else {
        halves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;

    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_changed_word_is_not_slept_on() {
        sleep(&AtomicU64::new(2), 1, NEVER);
    }

    #[test]
    fn a_sleep_ends_with_its_timeout() {
        sleep(&AtomicU64::new(1), 1, Duration::from_millis(1));
    }

    #[test]
    fn a_wake_ends_a_sleep() {
        let (word, woken) = (AtomicU64::new(7), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(SeqCst) == 7 {
                    sleep(&word, 7, NEVER);
                }
                woken.store(1, SeqCst);
            });
            // Whether it sleeps already or not yet, it must end.
            word.store(8, SeqCst);
            while woken.load(SeqCst) == 0 {
                wake(&word);
                thread::yield_now();
            }
        });
    }
}
