//! A fault injected into one rank, for tests of what happens next.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::value::{Kind, Value, parse_integer};

/// When a fault fires: at the n-th event of this phase on the chosen rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultPhase {
    /// The first is the load's beginning, before memory is reserved; then comes each weight tensor.
    Load,
    /// A forward call that carries prompt tokens begins.
    Prefill,
    /// A forward call of generated tokens only begins.
    Decode,
    /// An all-reduce of one of those two begins.
    AllReduce,
    /// A forward call begins by which an idle server tests its ranks.
    SelfTest,
}

impl FaultPhase {
    const ALL: [(&str, Self); 5] = [
        ("load", Self::Load),
        ("prefill", Self::Prefill),
        ("decode", Self::Decode),
        ("allreduce", Self::AllReduce),
        ("selftest", Self::SelfTest),
    ];
}

/// What the rank does when the fault fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// The process exits with code 1, running no clean-up beyond the system's.
    Exit,
    /// The process aborts (SIGABRT), as a failed assertion in a device library would make it.
    Abort,
    /// The process kills itself (SIGKILL), as the kernel does when memory is out.
    Kill,
    /// The process stops itself (SIGSTOP) until somebody sends SIGCONT.
    Stop,
    /// The compute thread stops moving for ever; the process stays alive.
    Stall,
    /// The process limits its memory to what it has, so that the next allocation that needs more fails.
    Memory,
}

impl FaultKind {
    const ALL: [(&str, Self); 6] = [
        ("exit", Self::Exit),
        ("abort", Self::Abort),
        ("kill", Self::Kill),
        ("stop", Self::Stop),
        ("stall", Self::Stall),
        ("memory", Self::Memory),
    ];
}

/// One injected fault, written `rank:phase:n:kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSpec {
    /// The rank that fails.
    pub rank: usize,
    /// The kind of event that triggers it.
    pub phase: FaultPhase,
    /// Which event of that kind, counting from 1 since the rank was told of the fault.
    pub n: u64,
    /// What happens.
    pub kind: FaultKind,
}

impl FaultSpec {
    /// What to do at the `n`-th event of `phase` (from 1) on `rank`; `None` is to carry on.
    pub fn fires(&self, rank: usize, phase: FaultPhase, n: u64) -> Option<FaultKind> {
        (self.rank == rank && self.phase == phase && self.n == n).then_some(self.kind)
    }
}

/// The text is not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "accepted is rank:phase:n:kind; rank counts from 0, phase is one of load, prefill, decode, \
     allreduce, selftest, n counts from 1, kind is one of exit, abort, kill, stop, stall, memory"
)]
pub struct FaultError;

impl FromStr for FaultSpec {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split(':').collect();
        let [rank, phase, n, kind] = parts[..] else { return Err(FaultError) };
        Ok(Self {
            rank: parse_integer(rank).ok_or(FaultError)?,
            phase: by_name(&FaultPhase::ALL, phase).ok_or(FaultError)?,
            n: parse_integer(n).filter(|n| *n >= 1).ok_or(FaultError)?,
            kind: by_name(&FaultKind::ALL, kind).ok_or(FaultError)?,
        })
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = name_of(&FaultPhase::ALL, self.phase);
        let kind = name_of(&FaultKind::ALL, self.kind);
        write!(f, "{}:{phase}:{}:{kind}", self.rank, self.n)
    }
}

/// Elements of a plane up to which all-reduces can be skipped; larger ones get around the skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipCeiling(usize);

impl SkipCeiling {
    const MAX: usize = u32::MAX as usize;

    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Value for SkipCeiling {
    const KIND: Kind = Kind::Integer;

    fn accepts() -> String {
        format!("a whole number of elements from 0 to {}", Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        parse_integer(text).filter(|elements| *elements <= Self::MAX).map(Self)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

fn by_name<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn name_of<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    // Both tables list every variant of their enum.
    table.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

/// The fault that is to come, if any. Unlike an option it can be taken back, by [`NONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PendingFault(pub Option<FaultSpec>);

/// No fault.
const NONE: &str = "none";

impl Value for PendingFault {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        let message = FaultError.to_string();
        format!("{NONE} or {}", message.strip_prefix("accepted is ").unwrap_or(&message))
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            NONE => Some(Self(None)),
            text => text.parse().ok().map(|fault| Self(Some(fault))),
        }
    }

    fn show(&self) -> String {
        self.0.map_or_else(|| NONE.to_owned(), |fault| fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_and_kind_reads_and_writes_back() {
        for (phase, _) in FaultPhase::ALL {
            for (kind, _) in FaultKind::ALL {
                let text = format!("3:{phase}:12:{kind}");
                let spec: FaultSpec = text.parse().unwrap();
                assert_eq!(spec.to_string(), text);
                assert_eq!((spec.rank, spec.n), (3, 12));
            }
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in [
            "",
            "1",
            "1:load:1",
            "1:load:1:exit:2",
            "x:load:1:exit",
            "-1:load:1:exit",
            "1:loading:1:exit",
            "1:load:0:exit",
            "1:load:one:exit",
            "1:load:1:crash",
            "1:LOAD:1:exit",
            " 1:load:1:exit",
        ] {
            assert_eq!(wrong.parse::<FaultSpec>(), Err(FaultError), "{wrong:?}");
        }
    }

    #[test]
    fn a_fault_can_be_taken_back() {
        for text in ["none", "1:load:1:memory"] {
            assert_eq!(PendingFault::parse(text).unwrap().show(), text);
        }
        assert_eq!(PendingFault::default().show(), "none");
        assert_eq!(PendingFault::parse(""), None);
    }

    #[test]
    fn a_ceiling_is_a_number_of_elements() {
        assert_eq!(SkipCeiling::parse("40960").map(SkipCeiling::get), Some(40_960));
        assert_eq!(SkipCeiling::parse("0").map(|ceiling| ceiling.show()), Some("0".to_owned()));
        for wrong in ["", "-1", "4096 numbers", "4294967296"] {
            assert_eq!(SkipCeiling::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn it_fires_once_on_one_rank() {
        let spec: FaultSpec = "2:decode:3:stall".parse().unwrap();
        assert_eq!(spec.fires(2, FaultPhase::Decode, 3), Some(FaultKind::Stall));
        assert_eq!(spec.fires(2, FaultPhase::Decode, 2), None);
        assert_eq!(spec.fires(2, FaultPhase::Decode, 4), None);
        assert_eq!(spec.fires(2, FaultPhase::Prefill, 3), None);
        assert_eq!(spec.fires(1, FaultPhase::Decode, 3), None);
    }
}
