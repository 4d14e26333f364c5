//! The coordinator's end of one rank: starts the process, carries messages, and watches that it lives
//! and moves. It reports; what follows from a report is the coordinator's decision.
//!
//! That a rank is dead is known from its process ending, which the kernel tells, and never from a
//! message: whatever kills a process also keeps it from sending one. Its last word to the coordinator
//! is always [`News::Ended`], after the process has been reaped.

mod liveness;
mod words;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use pocket_collectives::Watch;
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio_util::codec::FramedRead;

pub(crate) use liveness::Stall;

use crate::messages::{Assignment, FromRank, StepPlan, StepReport, ToRank};
use crate::socket::{self, Outbox};
use crate::spawn::{describe_exit, spawn_rank};
use crate::wire::WireError;
use liveness::Liveness;
use words::{LastWords, Lines};

/// A process that has closed its socket has this long to end.
const EXIT_GRACE: Duration = Duration::from_secs(5);
/// A process that has ended has closed its socket and its standard error, unless a child of its own
/// holds them open.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// How a link does its work.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// The program started as a rank.
    pub program: PathBuf,
    /// Variables set for it, beside those it inherits.
    pub environment: Vec<(String, String)>,
    /// From start to [`News::Ready`].
    pub load_timeout: Duration,
    /// Without progress or answer this long, the rank is stalled.
    pub stall_timeout: Duration,
    /// How often it is looked at.
    pub tick: Duration,
}

/// What the coordinator tells a link.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) enum LinkCommand {
    /// Have the rank run this.
    Run(Arc<StepPlan>),
    /// Ask the rank to leave; kill it after this long.
    Leave(Duration),
    /// End it now.
    Kill,
}

/// What a link tells the coordinator.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct LinkEvent {
    /// Which rank.
    pub rank: usize,
    /// Of which generation of the group: news of an earlier one is no news.
    pub epoch: u64,
    /// What happened.
    pub news: News,
}

/// See [`LinkEvent`].
#[derive(Debug)]
pub(crate) enum News {
    /// Its process runs.
    Started {
        /// The process.
        pid: u32,
    },
    /// It has mapped the segment.
    Attached,
    /// Weights loaded so far.
    Loading {
        /// Bytes packed.
        loaded: u64,
        /// Bytes to pack.
        total: u64,
    },
    /// It takes plans.
    Ready {
        /// What it runs on.
        device: String,
    },
    /// A step is done.
    Done(StepReport),
    /// It says that it cannot go on.
    Gave {
        /// Why.
        reason: String,
        /// It waited for another rank in vain.
        waited_for_peer: bool,
    },
    /// It was not ready in time.
    LoadTimeout,
    /// It lives and does not move.
    Stalled(Stall),
    /// Its socket is of no use any more: the peer is another version, or does not read or write sense.
    Broken {
        /// What is wrong.
        detail: String,
        /// It is another version of the program.
        version: bool,
    },
    /// Its process could not be started; this is the last word.
    NotStarted(std::io::Error),
    /// Its process is gone; this is the last word.
    Ended {
        /// How: "killed by signal 9 (SIGKILL)".
        how: String,
        /// It left by itself and in order.
        clean: bool,
    },
}

impl News {
    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, News::NotStarted(_) | News::Ended { .. })
    }
}

/// The actor.
pub(crate) struct RankLink {
    rank: usize,
    epoch: u64,
    options: LinkOptions,
    /// Sent when the rank says hello.
    assignment: Option<Box<Assignment>>,
    watch: Watch,
    coordinator: Recipient<LinkEvent>,
    liveness: Liveness,
    outbox: Option<Outbox<ToRank>>,
    kill: Option<oneshot::Sender<()>>,
    ready: bool,
    /// Said to be stalled or broken: once is enough.
    given_up: bool,
    /// Nothing more comes from the socket.
    drained: bool,
    /// More may come from its standard error.
    hearing: bool,
    /// What has come from there last.
    words: LastWords,
    /// The last word, held back until everything the rank has said before its end is read.
    last: Option<News>,
    ended: bool,
}

impl RankLink {
    /// A link that starts its process when the actor starts.
    pub fn new(
        assignment: Assignment,
        options: LinkOptions,
        watch: Watch,
        coordinator: Recipient<LinkEvent>,
    ) -> Self {
        Self {
            rank: assignment.rank,
            epoch: assignment.epoch,
            liveness: Liveness::new(options.stall_timeout, options.tick, Instant::now()),
            options,
            assignment: Some(Box::new(assignment)),
            watch,
            coordinator,
            outbox: None,
            kill: None,
            ready: false,
            given_up: false,
            drained: false,
            hearing: false,
            words: LastWords::default(),
            last: None,
            ended: false,
        }
    }

    fn tell(&mut self, news: News) {
        self.ended |= news.is_last();
        // Not waiting for room: what a link may say is bounded by what it is asked, and the
        // coordinator being gone means that all of this is being taken down.
        self.coordinator.do_send(LinkEvent { rank: self.rank, epoch: self.epoch, news });
    }

    fn give_up(&mut self, news: News) {
        if !self.given_up && !self.ended {
            self.given_up = true;
            self.tell(news);
        }
    }

    fn send(&mut self, message: ToRank) {
        let Some(outbox) = &self.outbox else { return };
        if let Err(error) = outbox.send(message) {
            // A closed socket is the sign of a process that is ending: let that be the news.
            if error == socket::SendError::Full {
                self.give_up(News::Broken { detail: error.to_string(), version: false });
            }
        }
    }

    fn beat(&self) -> u64 {
        self.watch.progress(self.rank).beat
    }

    fn kill(&mut self) {
        if let Some(kill) = self.kill.take() {
            // The receiver is gone only when the process is.
            let _ = kill.send(());
        }
    }

    /// Says the last word, if it is time. The end of a process is seen sooner than the message in which
    /// it gave the reason.
    fn end_if_drained(&mut self, ctx: &mut Context<Self>) {
        if self.drained
            && !self.hearing
            && let Some(last) = self.last.take()
        {
            self.tell(match last {
                News::Ended { how, clean } => News::Ended { how: self.words.explain(how), clean },
                last => last,
            });
            ctx.stop();
        }
    }

    fn look(&mut self, _: &mut Context<Self>) {
        let beat = self.beat();
        if let Some(stall) = self.liveness.tick(beat, Instant::now()) {
            self.give_up(News::Stalled(stall));
        }
        // Until it has said hello it may still be on its way from the disk; that has its own limit.
        if self.assignment.is_none()
            && let Some(number) = self.liveness.next_ping()
        {
            self.send(ToRank::Ping(number));
        }
    }
}

/// Waits for the process, killing it on demand. Being told by the kernel needs no help from it.
async fn reap(mut child: Child, kill: oneshot::Receiver<()>) -> News {
    let killed = async {
        // A sender that is dropped is no order to kill.
        if kill.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let status = tokio::select! {
        status = child.wait() => status,
        () = killed => {
            // It fails only for a process that has ended.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    match status {
        Ok(status) => News::Ended { how: describe_exit(status), clean: status.success() },
        Err(error) => News::Ended { how: format!("cannot be waited for: {error}"), clean: false },
    }
}

impl Actor for RankLink {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let process = match spawn_rank(&self.options.program, &self.options.environment) {
            Ok(process) => process,
            Err(error) => {
                self.tell(News::NotStarted(error));
                return ctx.stop();
            }
        };
        let (kill, killed) = oneshot::channel();
        self.kill = Some(kill);
        let reaped = reap(process.child, killed).into_actor(self).map(|ended, link, ctx| {
            link.last = Some(ended);
            link.end_if_drained(ctx);
            ctx.run_later(DRAIN_GRACE, |link, ctx| {
                link.drained = true;
                link.hearing = false;
                link.end_if_drained(ctx);
            });
        });
        ctx.spawn(reaped);
        self.hearing = true;
        ctx.add_stream(FramedRead::new(process.stderr, Lines::default()));
        self.tell(News::Started { pid: process.pid });
        match socket::open(process.socket) {
            Ok((inbox, outbox)) => {
                self.outbox = Some(outbox);
                ctx.add_stream(inbox);
            }
            Err(error) => {
                self.drained = true;
                self.give_up(News::Broken { detail: error.to_string(), version: false });
            }
        }
        ctx.run_interval(self.options.tick, Self::look);
        ctx.run_later(self.options.load_timeout, |link, _| {
            if !link.ready {
                link.give_up(News::LoadTimeout);
            }
        });
    }
}

impl Drop for RankLink {
    fn drop(&mut self) {
        // Only after a panic in a handler: the child has been killed by its own drop.
        if !self.ended {
            let how = "lost: the actor in charge of it ended".to_string();
            self.tell(News::Ended { how, clean: false });
        }
    }
}

impl Handler<LinkCommand> for RankLink {
    type Result = ();

    fn handle(&mut self, command: LinkCommand, ctx: &mut Self::Context) {
        match command {
            LinkCommand::Run(plan) => {
                self.liveness.work_begins(self.beat());
                self.send(ToRank::Plan(StepPlan::clone(&plan)));
            }
            LinkCommand::Leave(limit) => {
                self.given_up = true;
                self.send(ToRank::Exit);
                ctx.run_later(limit, |link, _| link.kill());
            }
            LinkCommand::Kill => {
                self.given_up = true;
                self.kill();
            }
        }
    }
}

impl StreamHandler<Result<FromRank, WireError>> for RankLink {
    fn handle(&mut self, message: Result<FromRank, WireError>, _: &mut Self::Context) {
        let message = match message {
            Ok(message) => message,
            // A process that is killed while it writes leaves half a message: its end is the news.
            Err(error @ (WireError::Io(_) | WireError::Truncated { .. })) => {
                tracing::debug!(rank = self.rank, %error, "the socket of a rank failed");
                return;
            }
            Err(error) => {
                let version = matches!(error, WireError::Version { .. } | WireError::Stranger);
                return self.give_up(News::Broken { detail: error.to_string(), version });
            }
        };
        match message {
            FromRank::Hello { pid } => {
                tracing::debug!(rank = self.rank, pid, "rank process is up");
                if let Some(assignment) = self.assignment.take() {
                    self.send(ToRank::Assign(assignment));
                }
            }
            FromRank::Attached => self.tell(News::Attached),
            FromRank::Loading { loaded, total } => self.tell(News::Loading { loaded, total }),
            FromRank::Ready { device } => {
                self.ready = true;
                self.tell(News::Ready { device });
            }
            FromRank::LoadFailed(reason) => {
                self.give_up(News::Gave { reason, waited_for_peer: false });
            }
            FromRank::Done(report) => {
                self.liveness.work_ends();
                self.tell(News::Done(report));
            }
            FromRank::StepFailed { reason, waited_for_peer, .. } => {
                self.liveness.work_ends();
                self.give_up(News::Gave { reason, waited_for_peer });
            }
            FromRank::Pong(number) => self.liveness.pong(number),
        }
    }

    /// The rank closed its end. It is about to end, or it is broken.
    fn finished(&mut self, ctx: &mut Self::Context) {
        self.drained = true;
        self.end_if_drained(ctx);
        ctx.run_later(EXIT_GRACE, |link, _| link.kill());
    }
}

/// Lines of its standard error.
impl StreamHandler<std::io::Result<String>> for RankLink {
    fn handle(&mut self, line: std::io::Result<String>, _: &mut Context<Self>) {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                return tracing::warn!(rank = self.rank, %error, "its standard error cannot be read");
            }
        };
        self.words.hear(&line);
        if !line.is_empty() {
            tracing::error!(rank = self.rank, "the rank's process says: {line}");
        }
    }

    fn finished(&mut self, ctx: &mut Context<Self>) {
        self.hearing = false;
        self.end_if_drained(ctx);
    }
}

#[cfg(test)]
mod tests;
