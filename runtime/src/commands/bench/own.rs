//! Measurements of servers: run on one thread, ended by signals, saved and judged in one way.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use pocket_bench::arms::{Launch, OwnServer, remove_folders};
use pocket_bench::record::Record;
use pocket_bench::report::Report;
use serde::Serialize;
use tokio::sync::watch;

use crate::cli::KeepArgs;
use crate::commands::engine::Signals;
use crate::commands::output::{print_json, stdout};
use crate::failure::{Interrupted, bad_input};

/// A wish to end, which a signal makes known.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Option<i32>>);

impl Stop {
    /// Ready once somebody has asked.
    pub async fn asked(&self) -> Interrupted {
        let mut receiver = self.0.clone();
        let signal = receiver.wait_for(Option::is_some).await;
        match signal.ok().and_then(|signal| *signal) {
            Some(signal) => Interrupted(signal),
            // Whoever listens for signals lives as long as the work.
            None => std::future::pending().await,
        }
    }

    /// Whether somebody has asked.
    fn signal(&self) -> Option<Interrupted> {
        self.0.borrow().map(Interrupted)
    }
}

/// Does the work on this thread: what one thread cannot do in time, measurements say. The first signal
/// asks the work to end and to give what it has; a second one ends the program.
pub fn block_on<T>(
    work: impl AsyncFnOnce(Stop) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Option<Interrupted>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::with_hangup()?;
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let Interrupted(signal) = signals.next().await;
            sender.send_replace(Some(signal));
            let Interrupted(signal) = signals.next().await;
            remove_folders();
            // The servers go with this process.
            std::process::exit(128 + signal);
        });
        let stop = Stop(receiver);
        let outcome = work(stop.clone()).await?;
        Ok((outcome, stop.signal()))
    })
}

/// Starts a server and does the work on it; the server has ended when this returns, whatever came of that.
pub async fn with_server<T>(
    launch: Launch,
    stop: &Stop,
    work: impl AsyncFnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut server = OwnServer::spawn(launch)?;
    let ready = tokio::select! {
        ready = server.ready(|_| {}) => ready.map_err(anyhow::Error::from),
        signal = stop.asked() => Err(signal.into()),
    };
    let outcome = match ready {
        Ok(()) => {
            let url = server.url().to_owned();
            work(&url).await
        }
        Err(error) => Err(error),
    };
    let stopped = server.stop().await;
    // What went wrong first is what matters.
    let outcome = outcome?;
    stopped?;
    Ok(outcome)
}

/// Makes the directory that results go to and sees whether files can be written there, so that one that
/// cannot be had ends a command before it measures and not after it.
pub fn make_room(directory: Option<&Path>) -> anyhow::Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    fs::create_dir_all(directory)
        .and_then(|()| tempfile::tempfile_in(directory))
        .map(drop)
        .map_err(|error| bad_input(format!("--result-dir {}: {error}", directory.display())))
}

/// The same for a single file, which is not changed yet.
pub fn make_room_for(option: &str, file: &Path) -> anyhow::Result<()> {
    let (is_new, is_ordinary) = (!file.exists(), file.is_file() || file.is_dir());
    let room = || {
        // Whoever reads a pipe would take this for the end.
        if !is_new && !is_ordinary {
            return Ok(());
        }
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        OpenOptions::new().append(true).create(true).open(file)?;
        if is_new { fs::remove_file(file) } else { Ok(()) }
    };
    room().map_err(|error| bad_input(format!("{option} {}: {error}", file.display())))
}

/// Prints a record, as one JSON object or as its report, and writes both into a directory if there is one.
/// What was measured is printed first: a disk that is full does not take it away.
pub fn show<T: Serialize>(
    record: &Record<T>,
    report: &Report,
    keep: &KeepArgs,
) -> anyhow::Result<()> {
    let mut out = stdout();
    if keep.json {
        print_json(record)?;
    } else {
        write!(out, "{}", report.text())?;
        out.flush()?;
    }
    let Some(directory) = &keep.result_dir else { return Ok(()) };
    record.write(directory)?;
    let page = report.write(directory)?;
    if !keep.json {
        writeln!(out, "saved: {}", page.display())?;
    }
    Ok(out.flush()?)
}

/// The end of a measurement that was interrupted before there was anything to show.
pub fn nothing(interrupted: Option<Interrupted>) -> anyhow::Result<()> {
    tracing::warn!("interrupted before there was anything to show");
    interrupted.map_or(Ok(()), |signal| Err(signal.into()))
}

/// The end of a measurement that was shown: interrupted, not to be believed, or well.
pub fn end<T>(record: &Record<T>, interrupted: Option<Interrupted>) -> anyhow::Result<()> {
    match interrupted {
        Some(signal) => Err(signal.into()),
        None => Ok(record.verdict()?),
    }
}
