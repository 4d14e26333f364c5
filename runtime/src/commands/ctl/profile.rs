//! `ctl profile`: records where the time of forward calls goes, and shows it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tonic::Streaming;

use super::client::{Connection, refusal};
use super::table::{Side::Left, Side::Right, Table};
use super::{answered, print};
use crate::cli::{ProfileArgs, ProfileStep};
use crate::commands::engine::Signals;
use crate::control::proto::profile_part::Part;
use crate::control::proto::profile_request::Action;
use crate::control::proto::{
    CallTimes, CoordinatorTimes, ProfilePart, ProfileRequest, ProfileStarted, ProfileSummary,
    RankTimes,
};
use crate::failure::bad_input;

/// Seconds to record when nothing is said.
const SECONDS: f64 = 10.0;
/// Added to what is recorded, so that it is this command that ends the recording.
const SLACK_S: f64 = 5.0;
/// The most the daemon takes.
const LONGEST_S: f64 = 600.0;

/// Records, or begins or ends a recording.
pub async fn run(connection: &Connection, args: &ProfileArgs, json: bool) -> anyhow::Result<()> {
    match args.step {
        Some(ProfileStep::Start) => {
            if args.trace.is_some() {
                return Err(bad_input("--trace is for the end of a recording: give it with stop"));
            }
            let ProfileStarted { limit_s } = start(connection, args.seconds.unwrap_or(0.0)).await?;
            print(json, &ProfileStarted { limit_s }, |out| {
                writeln!(
                    out,
                    "recording, for {limit_s} s at most; pocketd ctl profile stop ends it"
                )
            })
        }
        Some(ProfileStep::Stop) => {
            if args.seconds.is_some() {
                return Err(bad_input("--seconds is for the beginning of a recording"));
            }
            stop(connection, TraceFile::create(args.trace.as_deref())?, json).await
        }
        None => {
            // Before anything is slowed down for it.
            let file = TraceFile::create(args.trace.as_deref())?;
            let seconds = args.seconds.unwrap_or(SECONDS);
            let mut signals = Signals::listen()?;
            start(connection, (seconds + SLACK_S).min(LONGEST_S)).await?;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs_f64(seconds)) => {}
                _ = signals.next() => tracing::info!("interrupted: this is what there is so far"),
            }
            stop(connection, file, json).await
        }
    }
}

async fn parts(
    connection: &Connection,
    request: ProfileRequest,
) -> anyhow::Result<Streaming<ProfilePart>> {
    answered(connection.control().profile(request)).await
}

async fn next(parts: &mut Streaming<ProfilePart>) -> anyhow::Result<Option<Part>> {
    let part = parts.message().await.map_err(|status| refusal(&status))?;
    Ok(part.and_then(|part| part.part))
}

async fn start(connection: &Connection, limit_s: f64) -> anyhow::Result<ProfileStarted> {
    let request = ProfileRequest { action: Action::Start.into(), limit_s, trace: false };
    match next(&mut parts(connection, request).await?).await? {
        Some(Part::Started(started)) => Ok(started),
        other => bail!("the daemon answered something else: {other:?}"),
    }
}

/// Ends the recording, writes its trace, and shows its sums.
async fn stop(connection: &Connection, file: Option<TraceFile>, json: bool) -> anyhow::Result<()> {
    let action = Action::Stop.into();
    let request = ProfileRequest { action, limit_s: 0.0, trace: file.is_some() };
    let mut parts = parts(connection, request).await?;
    let Some(Part::Summary(summary)) = next(&mut parts).await? else {
        bail!("the daemon answered without what it recorded");
    };
    let mut written = None;
    if let Some(mut file) = file {
        file.begin()?;
        while let Some(part) = next(&mut parts).await? {
            if let Part::Trace(piece) = part {
                file.write(&piece)?;
            }
        }
        written = Some(file.close()?);
    }
    print(json, &summary, |out| {
        show(out, &summary)?;
        match written {
            Some(path) => writeln!(
                out,
                "\n{} slices are in {}; https://ui.perfetto.dev opens it",
                summary.trace_slices,
                path.display()
            ),
            None => Ok(()),
        }
    })
}

/// The file of a trace. What is in it is replaced when there is a trace, and not before.
struct TraceFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// It was not there before and has nothing in it yet.
    new: bool,
}

impl TraceFile {
    fn create(path: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let new = !path.exists();
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| bad_input(format!("--trace {}: {error}", path.display())))?;
        Ok(Some(Self { path: path.to_owned(), file: BufWriter::new(file), new }))
    }

    /// There is a trace: it takes the place of what was in the file.
    fn begin(&mut self) -> anyhow::Result<()> {
        self.new = false;
        let file = self.file.get_ref();
        // A pipe or a device has no length to set.
        let emptied = match file.metadata() {
            Ok(about) if about.is_file() => file.set_len(0),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        emptied.with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn write(&mut self, piece: &str) -> anyhow::Result<()> {
        let written = self.file.write_all(piece.as_bytes());
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn close(mut self) -> anyhow::Result<PathBuf> {
        self.file.flush().with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(std::mem::take(&mut self.path))
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if self.new {
            // An empty file is nothing that anybody asked for; one that stays does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The sums as people read them.
fn show(out: &mut impl Write, summary: &ProfileSummary) -> io::Result<()> {
    let ended = if summary.timed_out { ", the limit of the recording" } else { "" };
    writeln!(out, "{:.1} s{ended}", summary.took_s)?;
    type Of = fn(&RankTimes) -> Option<CallTimes>;
    let kinds: [(_, _, Of); 2] = [
        ("prefill", &summary.prefill, |rank| rank.prefill),
        ("decode", &summary.decode, |rank| rank.decode),
    ];
    for (name, all, of_rank) in kinds {
        let all = all.unwrap_or_default();
        writeln!(out, "\n{name}: {} calls, {} rows", all.calls, all.rows)?;
        if all.calls > 0 {
            let ranks = summary.ranks.iter().map(|rank| (rank.rank, of_rank(rank)));
            let ranks = ranks.map(|(rank, times)| (rank, times.unwrap_or_default()));
            phases(&all, &ranks.collect::<Vec<_>>()).write(out)?;
        }
    }
    let CoordinatorTimes { plan_us, call_us, serve_us, logits_us, sample_us } =
        summary.coordinator.unwrap_or_default();
    writeln!(
        out,
        "\ncoordinator: {} ms planning, {} ms waiting for calls, {} ms serving; sampling thread: {} ms \
         waiting for logits, {} ms sampling",
        ms(plan_us),
        ms(call_us),
        ms(serve_us),
        ms(logits_us),
        ms(sample_us)
    )?;
    if summary.trace_left_out > 0 {
        let left_out = summary.trace_left_out;
        writeln!(out, "the trace was full: {left_out} slices are only in these sums")?;
    }
    Ok(())
}

/// One row a phase: all ranks together, the share of it, and each rank.
fn phases(all: &CallTimes, ranks: &[(u32, CallTimes)]) -> Table {
    let mut table = Table::new(&[("phase", Left), ("ms", Right), ("share", Right)]);
    for (rank, _) in ranks {
        table.column(format!("rank {rank} ms"), Right);
    }
    let rows = |times: &CallTimes| {
        [
            ("embed", times.embed_us),
            ("norm", times.norm_us),
            ("linear attention", times.linear_attention_us),
            ("full attention", times.full_attention_us),
            ("mlp", times.mlp_us),
            ("all-reduce", times.all_reduce_us),
            ("head", times.head_us),
            ("other", times.other_us),
            ("whole calls", times.elapsed_us),
        ]
    };
    let of_ranks: Vec<_> = ranks.iter().map(|(_, times)| rows(times)).collect();
    for (index, (name, us)) in rows(all).into_iter().enumerate() {
        let share = 100.0 * us as f64 / (all.elapsed_us as f64).max(1.0);
        let mut row = vec![name.to_owned(), ms(us), format!("{share:.1} %")];
        row.extend(of_ranks.iter().map(|rows| ms(rows[index].1)));
        table.row(row);
    }
    table
}

fn ms(us: u64) -> String {
    format!("{:.1}", us as f64 * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_their_share_of_all_ranks() {
        let times = |mlp_us, other_us| CallTimes {
            calls: 4,
            rows: 8,
            elapsed_us: mlp_us + other_us,
            other_us,
            mlp_us,
            ..CallTimes::default()
        };
        let rank = |rank, decode| RankTimes { rank, pid: 9, prefill: None, decode: Some(decode) };
        let summary = ProfileSummary {
            took_s: 2.0,
            decode: Some(times(3000, 1000)),
            ranks: vec![rank(0, times(1000, 400)), rank(1, times(2000, 600))],
            trace_left_out: 3,
            ..ProfileSummary::default()
        };
        let mut text = Vec::new();
        show(&mut text, &summary).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("2.0 s\n\nprefill: 0 calls, 0 rows\n\ndecode: 4 calls, 8 rows\n"));
        for line in [
            "phase              ms    share  rank 0 ms  rank 1 ms",
            "mlp               3.0   75.0 %        1.0        2.0",
            "other             1.0   25.0 %        0.4        0.6",
            "whole calls       4.0  100.0 %        1.4        2.6",
            "the trace was full: 3 slices are only in these sums",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
    }
}
