//! Looks for the limits along both axes.

use std::future::Future;

use serde::{Deserialize, Serialize};

use super::bisect::{Boundary, bisect};
use super::try_start::{LimitError, Plan, Refusal, Started, Starter};
use crate::record::{Invalid, Record, Server};
use crate::report::number::counted;

/// Contexts are looked for in steps of a KV block, tokens.
const STEP: usize = 64;

/// No model is trained for more positions.
const MOST_CONTEXT: usize = 1 << 24;

/// No server computes more sequences at a time.
const MOST_SLOTS: usize = 1 << 16;

/// What grows until it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The context, at a given number of slots.
    Context,
    /// The slots, at a given context.
    Slots,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Find {
    /// Numbers of slots whose largest context is looked for.
    pub slots: Vec<usize>,
    /// Contexts whose largest number of slots is looked for, tokens.
    pub contexts: Vec<usize>,
}

/// The largest size along one axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// What grew.
    pub axis: Axis,
    /// Sequences computed at a time.
    pub slots: usize,
    /// Positions of each.
    pub context: usize,
    /// Both multiplied, tokens.
    pub slots_x_context: usize,
    /// Tokens the KV cache has room for, of all sequences together.
    pub kv_tokens: usize,
    /// Sequences that can have all their positions at once; others wait, or give way.
    pub full_sequences: usize,
    /// Bytes of all ranks.
    pub bytes: u64,
    /// What came of a start at this size.
    pub started: Started,
    /// The next size.
    pub above: (usize, usize),
    /// What came of a start at the next size.
    pub above_started: Started,
    /// Whether memory or a budget is what limits it, rather than the model or the program.
    pub limited_by_memory: bool,
    /// Plans asked for on the way.
    pub plans: usize,
}

/// A number of slots or a context for which there is no ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impossible {
    /// The smallest size that was asked for, in words.
    pub smallest: String,
    /// What the server says.
    pub refusal: Refusal,
}

/// All ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// In the order in which they were asked for.
    pub ceilings: Vec<Ceiling>,
    /// The largest slots x context of them.
    pub largest: Option<(usize, usize)>,
    /// Sizes of which not even the smallest starts, and why.
    pub impossible: Vec<Impossible>,
    /// Ceilings that were asked for; more than there are, if the search was interrupted.
    pub planned: usize,
    /// The servers that served, for the record, which has them once.
    #[serde(skip)]
    pub servers: Vec<Server>,
}

impl Find {
    /// Looks for all of them. `found` hears of each as it is found. Once `stop` is ready it ends with those
    /// that are found by then; a server that is being started is killed, and its ranks go with it.
    ///
    /// # Errors
    ///
    /// A server fails in another way than by refusing, or there is no ceiling at all: not even the smallest
    /// sizes start.
    pub async fn run(
        &self,
        starter: &Starter,
        mut found: impl FnMut(&Ceiling),
        stop: impl Future,
    ) -> Result<Limits, LimitError> {
        let contexts = self.slots.iter().map(|slots| (Axis::Context, *slots));
        let slots = self.contexts.iter().map(|context| (Axis::Slots, *context));
        let wanted: Vec<(Axis, usize)> = contexts.chain(slots).collect();
        let (mut ceilings, mut servers, mut impossible) = (Vec::new(), Vec::new(), Vec::new());
        let search = async {
            for (axis, given) in &wanted {
                let (ceiling, server) = match ceiling(starter, *axis, *given).await {
                    Err(LimitError::Nothing { smallest, why }) => {
                        impossible.push(Impossible { smallest, refusal: why });
                        continue;
                    }
                    found => found?,
                };
                found(&ceiling);
                ceilings.push(ceiling);
                servers.extend(server);
            }
            Ok::<_, LimitError>(())
        };
        tokio::select! {
            searched = search => searched?,
            _ = stop => {}
        }
        if impossible.len() == wanted.len() && !impossible.is_empty() {
            let Impossible { smallest, refusal } = impossible.swap_remove(0);
            return Err(LimitError::Nothing { smallest, why: refusal });
        }
        let largest = ceilings.iter().max_by_key(|ceiling| ceiling.slots_x_context);
        let largest = largest.map(|ceiling| (ceiling.slots, ceiling.context));
        Ok(Limits { ceilings, largest, impossible, planned: wanted.len(), servers })
    }
}

/// Slots and context of a step along an axis.
fn size(axis: Axis, given: usize, step: usize) -> (usize, usize) {
    match axis {
        Axis::Context => (given, step * STEP),
        Axis::Slots => (step, given),
    }
}

fn size_text(slots: usize, context: usize) -> String {
    format!("{} of {context} tokens", counted(slots, "slot"))
}

/// One of them, and the server that served at it.
async fn ceiling(
    starter: &Starter,
    axis: Axis,
    given: usize,
) -> Result<(Ceiling, Option<Server>), LimitError> {
    let most = match axis {
        Axis::Context => MOST_CONTEXT / STEP,
        Axis::Slots => MOST_SLOTS,
    };
    let mut plans = 0;
    let mut largest: Option<Plan> = None;
    let boundary = bisect(most, async |step| {
        plans += 1;
        let (slots, context) = size(axis, given, step);
        Ok::<_, LimitError>(match starter.plan(slots, context).await? {
            Ok(plan) => {
                // Steps that fit only ever grow.
                largest = Some(plan);
                Ok(())
            }
            Err(refusal) => Err(refusal),
        })
    });
    let Boundary { refused, .. } = boundary.await?;
    let Some((above, why)) = refused else {
        let (slots, context) = size(axis, given, most);
        return Err(LimitError::Plan {
            command: format!("for {}", size_text(slots, context)),
            reason: "it would start, which no program of this kind does".to_owned(),
        });
    };
    let Some(plan) = largest else {
        let (slots, context) = size(axis, given, 1);
        let smallest = size_text(slots, context);
        return Err(LimitError::Nothing { smallest, why });
    };
    let above = size(axis, given, above);
    let (started, server) = starter.start(plan.slots, plan.context).await?;
    let (above_started, _) = starter.start(above.0, above.1).await?;
    let ceiling = Ceiling {
        axis,
        slots: plan.slots,
        context: plan.context,
        slots_x_context: plan.slots * plan.context,
        kv_tokens: plan.kv_tokens,
        full_sequences: (plan.kv_tokens / plan.context).min(plan.slots),
        bytes: plan.bytes,
        started,
        above,
        limited_by_memory: above_started.refusal.as_ref().is_some_and(Refusal::is_of_memory),
        above_started,
        plans,
    };
    Ok((ceiling, server))
}

impl Limits {
    /// Marks a record in which a start did not do as it had planned, or that is not complete.
    pub fn judge(&self, record: &mut Record<()>) {
        let (done, planned) = (self.ceilings.len() + self.impossible.len(), self.planned);
        if done < planned {
            record.invalidate(Invalid::Interrupted { done, planned, what: "limits".to_owned() });
        }
        for ceiling in &self.ceilings {
            let size = |(slots, context)| format!("a start with {}", size_text(slots, context));
            if let Some(refusal) = &ceiling.started.refusal {
                record.invalidate(Invalid::Unexpected {
                    what: size((ceiling.slots, ceiling.context)),
                    expected: "a server, as its plan says".to_owned(),
                    found: refusal.message.clone(),
                });
            }
            if ceiling.above_started.refusal.is_none() {
                record.invalidate(Invalid::Unexpected {
                    what: size(ceiling.above),
                    expected: "a refusal, as its plan says".to_owned(),
                    found: "a server".to_owned(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;

    fn ceiling(refused: bool, above_refused: bool) -> Ceiling {
        let started = |refused: bool| Started {
            refusal: refused.then(|| Refusal { exit_code: Some(1), message: "no room".to_owned() }),
            seconds: 1.0,
        };
        Ceiling {
            axis: Axis::Context,
            slots: 2,
            context: 64,
            slots_x_context: 128,
            kv_tokens: 64,
            full_sequences: 1,
            bytes: 1,
            started: started(refused),
            above: (2, 128),
            above_started: started(above_refused),
            limited_by_memory: above_refused,
            plans: 3,
        }
    }

    fn limits(ceilings: Vec<Ceiling>, planned: usize) -> Limits {
        Limits { ceilings, largest: None, impossible: vec![], planned, servers: vec![] }
    }

    #[test]
    fn starts_must_do_as_they_plan() {
        for (refused, above_refused, reasons) in
            [(false, true, 0), (true, true, 1), (false, false, 1), (true, false, 2)]
        {
            let ceilings = vec![ceiling(refused, above_refused)];
            let limits = limits(ceilings, 1);
            let mut record = Record::new(Kind::Limit, vec![], ());
            limits.judge(&mut record);
            assert_eq!(record.reasons().count(), reasons, "{refused} {above_refused}");
        }
    }

    #[test]
    fn a_search_that_was_interrupted_is_not_complete() {
        let ceilings = vec![ceiling(false, true)];
        let limits = limits(ceilings, 3);
        let mut record = Record::new(Kind::Limit, vec![], ());
        limits.judge(&mut record);
        let said = record.verdict().unwrap_err().to_string();
        assert!(said.contains("interrupted after 1 of 3 limits"), "{said}");
    }

    #[test]
    fn steps_are_blocks_or_slots() {
        assert_eq!(size(Axis::Context, 4, 3), (4, 192));
        assert_eq!(size(Axis::Slots, 64, 3), (3, 64));
    }
}
