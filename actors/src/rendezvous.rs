//! Owns the life of the shared segment ranks meet in, not its bytes: all-reduces go straight to the
//! memory, without a message. One segment an epoch: made before the ranks start, without a name from
//! then on (a daemon that is killed at any moment leaves none), closed as soon as all have attached,
//! given up when one of them fails.

use actix::prelude::*;
use pocket_collectives::{
    CollectiveError, LogitsReceiver, Missing, Party, SegmentOwner, SegmentSpec, Watch, sweep_stale,
};

/// Makes the segment of an epoch. The one before, if any, is given up.
#[derive(Debug, Message)]
#[rtype(result = "Result<Opened, CollectiveError>")]
pub(crate) struct Open {
    /// What to make.
    pub spec: SegmentSpec,
}

/// A segment that is there.
pub(crate) struct Opened {
    /// Where ranks attach.
    pub name: String,
    /// Reads how far ranks are.
    pub watch: Watch,
    /// Takes their logits.
    pub receiver: LogitsReceiver,
}

/// A rank says that it has attached. Answers whether all have, so that nothing is left of the segment
/// but memory that goes with its last user.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct RankAttached {
    /// The epoch it attached to.
    pub epoch: u64,
}

/// Ends the epoch: whoever waits in it is freed at once.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Poison {
    /// Who is to blame.
    pub by: Party,
}

/// Asks where ranks are and who keeps the others waiting.
#[derive(Debug, Message)]
#[rtype(result = "Option<Census>")]
pub(crate) struct TakeCensus;

/// What the segment shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    /// Which epoch.
    pub epoch: u64,
    /// Ranks that have attached.
    pub attached: Vec<usize>,
    /// All-reduce calls begun, by rank.
    pub calls: Vec<u64>,
    /// Ranks that have not arrived where others wait.
    pub missing: Vec<Missing>,
    /// Who gave the epoch up, if somebody did.
    pub poisoned: Option<String>,
}

struct Epoch {
    number: u64,
    world: usize,
    owner: SegmentOwner,
}

/// The actor.
#[derive(Default)]
pub(crate) struct Rendezvous {
    epoch: Option<Epoch>,
}

impl Actor for Rendezvous {
    type Context = Context<Self>;
}

impl Handler<Open> for Rendezvous {
    type Result = Result<Opened, CollectiveError>;

    fn handle(&mut self, Open { spec }: Open, _: &mut Self::Context) -> Self::Result {
        if let Some(epoch) = self.epoch.take() {
            epoch.owner.poison(Party::Coordinator);
        }
        let swept = sweep_stale();
        if !swept.is_empty() {
            tracing::info!(?swept, "removed shared segments that a killed daemon left");
        }
        let mut owner = SegmentOwner::create_detached(&spec)?;
        let receiver = owner.take_receiver().ok_or_else(|| CollectiveError::Mismatch {
            name: owner.name().to_string(),
            detail: "its logits are received already".to_string(),
        })?;
        let opened = Opened { name: owner.detach()?, watch: owner.watch(), receiver };
        tracing::debug!(segment = owner.name(), epoch = spec.epoch, bytes = spec.bytes(), "made");
        self.epoch = Some(Epoch { number: spec.epoch, world: spec.world, owner });
        Ok(opened)
    }
}

impl Handler<RankAttached> for Rendezvous {
    type Result = bool;

    fn handle(&mut self, attached: RankAttached, _: &mut Self::Context) -> bool {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| epoch.number == attached.epoch) else {
            return false;
        };
        if epoch.owner.attached().len() < epoch.world {
            return false;
        }
        if let Err(error) = epoch.owner.unlink() {
            tracing::warn!(%error, "the shared segment stays open to ranks");
        }
        true
    }
}

impl Handler<Poison> for Rendezvous {
    type Result = ();

    fn handle(&mut self, Poison { by }: Poison, _: &mut Self::Context) {
        if let Some(epoch) = &self.epoch {
            epoch.owner.poison(by);
        }
    }
}

impl Handler<TakeCensus> for Rendezvous {
    type Result = Option<Census>;

    fn handle(&mut self, _: TakeCensus, _: &mut Self::Context) -> Option<Census> {
        let epoch = self.epoch.as_ref()?;
        let watch = epoch.owner.watch();
        Some(Census {
            epoch: epoch.number,
            attached: watch.attached(),
            calls: watch.all().iter().map(|progress| progress.all_reduce).collect(),
            missing: watch.missing(),
            poisoned: watch.poisoned(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use pocket_collectives::{ProgressSink, RankPort};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Ends the actor, as a panic would.
    #[derive(Debug, Message)]
    #[rtype(result = "()")]
    pub(crate) struct Vanish;

    impl Handler<Vanish> for Rendezvous {
        type Result = ();

        fn handle(&mut self, _: Vanish, ctx: &mut Self::Context) {
            ctx.stop();
        }
    }

    fn spec(epoch: u64, world: usize) -> SegmentSpec {
        SegmentSpec { world, epoch, run_id: uuid::Uuid::new_v4().simple().to_string() }
    }

    /// Names of segments of this run.
    fn names(run_id: &str) -> usize {
        let entries = std::fs::read_dir("/dev/shm").unwrap();
        let mine = entries
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(run_id));
        mine.count()
    }

    /// Whether a link to an open file shows a segment of this run.
    fn shows(file: &std::path::Path, run_id: &str) -> bool {
        file.to_string_lossy().contains(run_id)
    }

    #[actix::test]
    async fn a_full_segment_is_closed_and_the_late_are_named() {
        let rendezvous = Rendezvous::default().start();
        assert_eq!(rendezvous.send(TakeCensus).await.unwrap(), None);
        let spec = spec(7, 2);
        let run_id = spec.run_id.clone();
        let opened = rendezvous.send(Open { spec }).await.unwrap().unwrap();
        assert_eq!(names(&run_id), 0);

        let mut first = RankPort::attach(&opened.name, 0, 2, 7, DEADLINE).unwrap();
        assert!(!rendezvous.send(RankAttached { epoch: 7 }).await.unwrap());
        let second = RankPort::attach(&opened.name, 1, 2, 7, DEADLINE).unwrap();
        assert!(!rendezvous.send(RankAttached { epoch: 6 }).await.unwrap(), "another epoch");
        assert!(rendezvous.send(RankAttached { epoch: 7 }).await.unwrap());
        let late = RankPort::attach(&opened.name, 1, 2, 7, DEADLINE);
        assert!(late.is_err(), "nobody attaches to a full segment");

        // Rank 0 waits in an all-reduce for rank 1, which is in a layer.
        second.progress.enter_layer(5);
        let waits = std::thread::spawn(move || first.all_reduce.reduce(&mut [1.0; 8]));
        let census = loop {
            let census = rendezvous.send(TakeCensus).await.unwrap().unwrap();
            if !census.missing.is_empty() {
                break census;
            }
            actix_rt::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!((census.epoch, census.attached), (7, vec![0, 1]));
        assert_eq!(census.calls, [1, 0]);
        let missing = &census.missing[0];
        assert_eq!((missing.rank, missing.call, missing.layer), (1, 1, 5));
        assert_eq!(census.poisoned, None);

        rendezvous.send(Poison { by: Party::Rank(1) }).await.unwrap();
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, CollectiveError::Poisoned { epoch: 7, .. }), "{error}");
        let census = rendezvous.send(TakeCensus).await.unwrap().unwrap();
        assert_eq!(census.poisoned.as_deref(), Some("rank 1"));
    }

    #[actix::test]
    async fn a_new_epoch_ends_the_old_one_and_nothing_is_left_behind() {
        let rendezvous = Rendezvous::default().start();
        let old = rendezvous.send(Open { spec: spec(1, 2) }).await.unwrap().unwrap();
        let spec = spec(2, 2);
        let run_id = spec.run_id.clone();
        let new = rendezvous.send(Open { spec }).await.unwrap().unwrap();
        let file = std::fs::read_link(&new.name).unwrap();
        assert!(shows(&file, &run_id), "{}", file.display());
        assert!(old.watch.poisoned().is_some() && new.watch.poisoned().is_none());
        let (watch, name) = (new.watch.clone(), new.name.clone());
        drop(rendezvous);
        // Its number may be another file's by then.
        let open = || std::fs::read_link(&name).is_ok_and(|file| shows(&file, &run_id));
        while open() {
            actix_rt::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(watch.world(), 2);
    }
}
