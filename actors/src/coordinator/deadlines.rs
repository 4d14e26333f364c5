//! When requests must be done. One timer for all of them: a timer of its own for each would be looked at
//! with every message the coordinator gets, long after its request has ended.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use actix::prelude::*;

use super::Coordinator;
use super::plan::RequestKey;
use crate::api::RequestError;
use crate::metrics::Outcome;

/// The deadlines of the live requests.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    all: BTreeSet<(Instant, RequestKey)>,
    /// When the timer goes off; none runs where there is no deadline.
    timer: Option<Instant>,
}

impl Deadlines {
    /// A request has ended.
    pub fn remove(&mut self, deadline: Instant, key: RequestKey) {
        self.all.remove(&(deadline, key));
    }

    /// Takes the requests whose deadlines have passed.
    fn due(&mut self, now: Instant) -> Vec<RequestKey> {
        let later = self.all.split_off(&(now + Duration::from_nanos(1), RequestKey(0)));
        let due = std::mem::replace(&mut self.all, later);
        due.into_iter().map(|(_, key)| key).collect()
    }
}

impl Coordinator {
    /// A request is to be done by then.
    pub(super) fn set_deadline(
        &mut self,
        key: RequestKey,
        deadline: Instant,
        ctx: &mut Context<Self>,
    ) {
        self.deadlines.all.insert((deadline, key));
        self.wait_for_deadlines(ctx);
    }

    /// Has the timer go off at the first deadline.
    fn wait_for_deadlines(&mut self, ctx: &mut Context<Self>) {
        let Some((first, _)) = self.deadlines.all.first().copied() else { return };
        if self.deadlines.timer.is_some_and(|timer| timer <= first) {
            return;
        }
        self.deadlines.timer = Some(first);
        let wait = first.saturating_duration_since(Instant::now());
        ctx.run_later(wait, |coordinator, ctx| {
            coordinator.deadlines.timer = None;
            coordinator.expire(ctx);
            coordinator.wait_for_deadlines(ctx);
        });
    }

    /// Ends the requests whose deadlines have passed, by this process's clock and nobody else's.
    fn expire(&mut self, ctx: &mut Context<Self>) {
        for key in self.deadlines.due(Instant::now()) {
            self.end(key, Outcome::DeadlineExceeded, |request, id| {
                let timeout = request.timeout().unwrap_or_default();
                tracing::info!(id, ?timeout, "not done by its deadline");
                request.fail(RequestError::DeadlineExceeded(timeout));
            });
        }
        self.after_an_end(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_have_passed_are_due_and_those_that_ended_are_not() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut deadlines = Deadlines::default();
        for (ms, key) in [(30, 1), (10, 2), (20, 3), (10, 4)] {
            deadlines.all.insert((at(ms), RequestKey(key)));
        }
        deadlines.remove(at(10), RequestKey(4));
        assert_eq!(deadlines.due(at(9)), []);
        assert_eq!(deadlines.due(at(20)), [RequestKey(2), RequestKey(3)]);
        assert_eq!(deadlines.due(at(20)), []);
        assert_eq!(deadlines.due(at(99)), [RequestKey(1)]);
    }
}
