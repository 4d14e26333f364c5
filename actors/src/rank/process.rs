//! The rank process from its first instruction to its exit code.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use actix::prelude::*;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, getppid};
use tokio::sync::oneshot;

use super::{FAILED, Rank, compute};
use crate::socket;

/// Exit code of a process that was not started by a coordinator.
const MISUSED: i32 = 2;
/// Exit code of a process that panicked; the one the standard library uses.
const PANICKED: i32 = 101;

/// Runs a rank: what `PROGRAM rank` does. The coordinator starts it with one end of a socket pair as
/// standard input; started by hand it says so and returns 2. Returns the exit code.
///
/// Call it on the main thread, with logging set up and nothing else running: it makes its own runtime,
/// and threads started before would not have its signal mask.
pub fn rank_main() -> i32 {
    let socket = match prepare() {
        Ok(socket) => socket,
        Err(reason) => {
            tracing::error!("{reason}");
            return MISUSED;
        }
    };
    match System::new().block_on(run(socket)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("a rank cannot start: {error}");
            FAILED
        }
    }
}

/// Ties the process to the coordinator's life before anything else.
fn prepare() -> Result<OwnedFd, String> {
    let by_hand = |_| {
        "`rank` is started by `pocketd serve`, `generate` and `score`, not by hand: its standard \
         input has to be a socket to them"
            .to_string()
    };
    let coordinator = getsockopt(&io::stdin(), sockopt::PeerCredentials).map_err(by_hand)?;
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| format!("cannot tie this process to its parent: {error}"))?;
    // If the parent ended before that call, nobody will send the signal any more.
    if getppid() != Pid::from_raw(coordinator.pid()) {
        return Err("the coordinator is gone".to_string());
    }
    // A terminal's Ctrl-C and a service manager's stop reach the whole process group. The coordinator
    // then drains, for which it needs its ranks: they obey it and its socket alone. (Blocking is
    // inherited by every thread started from here on, and is as good as ignoring.)
    let group_signals: SigSet =
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    group_signals
        .thread_block()
        .map_err(|error| format!("cannot block the signals of the process group: {error}"))?;
    // A rank that has lost a thread is of no use, and its silence would be taken for a stall.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(PANICKED);
    }));
    io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| format!("cannot use the socket: {error}"))
}

/// Runs until told to leave.
async fn run(socket: OwnedFd) -> io::Result<i32> {
    let (inbox, outbox) = socket::open(socket)?;
    // An order is taken at once by an idle compute thread; a second one waiting is an error.
    let (orders, taken) = mpsc::sync_channel(1);
    let (end, ended) = oneshot::channel();
    let rank = Rank::create(|ctx| {
        ctx.add_stream(inbox);
        Rank::new(orders, outbox, end)
    });
    let reports = rank.recipient();
    std::thread::Builder::new()
        .name("compute".to_string())
        .spawn(move || compute::run(&taken, &reports))?;
    // The actor ends without a code only by a panic, and that ends the process before.
    Ok(ended.await.unwrap_or(FAILED))
}
