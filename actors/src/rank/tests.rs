//! The rank's mailbox: what the actor does while the compute thread is busy, which here it is for as
//! long as the test does not take its orders.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};

use futures_util::StreamExt;
use pocket_collectives::Counters;
use pocket_config::FlagSet;
use pocket_device::WorkDone;
use pocket_model::forward::Step;

use super::*;
use crate::messages::StepReport;
use crate::socket::{self, Inbox};

struct Rig {
    rank: Addr<Rank>,
    orders: Receiver<Order>,
    inbox: Inbox<ToRank, FromRank>,
    outbox: Outbox<ToRank>,
    ended: oneshot::Receiver<i32>,
}

fn rig() -> Rig {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (inbox, outbox) = socket::open(theirs.into()).unwrap();
    let (orders, taken) = sync_channel(1);
    let (end, ended) = oneshot::channel();
    let rank = Rank::create(|ctx| {
        ctx.add_stream(inbox);
        Rank::new(orders, outbox, end)
    });
    let (inbox, outbox) = socket::open(ours.into()).unwrap();
    Rig { rank, orders: taken, inbox, outbox, ended }
}

impl Rig {
    async fn hear(&mut self) -> FromRank {
        self.inbox.next().await.unwrap().unwrap()
    }
}

fn plan(number: u64) -> StepPlan {
    let step = Step { number, ..Step::default() };
    StepPlan { step, flags: FlagSet::default(), self_test: false, profile: false }
}

fn done(step: u64) -> FromRank {
    let (rows, counters, work) = (vec![], Counters::default(), WorkDone::default());
    FromRank::Done(StepReport { step, rows, counters, work, elapsed_us: 1, profile: None })
}

#[actix::test]
async fn it_answers_pings_while_a_step_runs_and_passes_reports_on() {
    let mut rig = rig();
    assert_eq!(rig.hear().await, FromRank::Hello { pid: std::process::id() });
    rig.outbox.send(ToRank::Plan(plan(5))).unwrap();
    for number in [3, 4] {
        rig.outbox.send(ToRank::Ping(number)).unwrap();
        assert_eq!(rig.hear().await, FromRank::Pong(number));
    }
    // The step is still waiting to be taken.
    let Order::Run(taken) = rig.orders.try_recv().unwrap() else { panic!() };
    assert_eq!(taken, plan(5));
    rig.rank.do_send(Report(done(5)));
    assert_eq!(rig.hear().await, done(5));
    assert!(rig.ended.try_recv().is_err(), "it stays");
}

#[actix::test]
async fn it_leaves_in_the_middle_of_a_step_when_told_to() {
    let mut rig = rig();
    rig.outbox.send(ToRank::Plan(plan(1))).unwrap();
    rig.outbox.send(ToRank::Exit).unwrap();
    assert_eq!(rig.hear().await, FromRank::Hello { pid: std::process::id() });
    assert_eq!(rig.ended.await, Ok(LEFT));
    assert!(rig.orders.try_recv().is_ok());
}

#[actix::test]
async fn it_leaves_when_the_coordinator_is_gone() {
    let Rig { rank, orders, inbox, outbox, ended } = rig();
    outbox.close().await;
    drop(inbox);
    assert_eq!(ended.await, Ok(LEFT));
    drop((rank, orders));
}

#[actix::test]
async fn the_reason_of_a_failure_is_delivered_before_it_leaves() {
    for last in [
        FromRank::LoadFailed("no weights".to_string()),
        FromRank::StepFailed { step: 2, reason: "no memory".to_string(), waited_for_peer: false },
    ] {
        let mut rig = rig();
        rig.rank.do_send(Report(last.clone()));
        rig.hear().await;
        assert_eq!(rig.hear().await, last);
        assert_eq!(rig.ended.await, Ok(FAILED));
    }
}

#[actix::test]
async fn plans_that_come_too_early_end_it() {
    let rig = rig();
    for number in 1..=2 {
        rig.outbox.send(ToRank::Plan(plan(number))).unwrap();
    }
    assert_eq!(rig.ended.await, Ok(FAILED));
}

#[actix::test]
async fn a_coordinator_that_makes_no_sense_ends_it() {
    use std::io::Write;
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (inbox, outbox) = socket::open(theirs.into()).unwrap();
    let (orders, _taken) = sync_channel(1);
    let (end, ended) = oneshot::channel();
    let _rank = Rank::create(|ctx| {
        ctx.add_stream(inbox);
        Rank::new(orders, outbox, end)
    });
    ours.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(ended.await, Ok(FAILED));
}
