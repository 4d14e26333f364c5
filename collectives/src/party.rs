//! Who takes part in an epoch, and why an epoch was given up.

use std::fmt;

/// One of the processes attached to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The process that made the segment.
    Coordinator,
    /// A rank, counted from 0.
    Rank(usize),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Coordinator => f.write_str("the coordinator"),
            Party::Rank(rank) => write!(f, "rank {rank}"),
        }
    }
}

impl Party {
    fn bit(self) -> u32 {
        match self {
            Party::Coordinator => 0,
            Party::Rank(rank) => rank as u32 + 1,
        }
    }

    fn from_bit(bit: u32) -> Party {
        if bit == 0 { Party::Coordinator } else { Party::Rank(bit as usize - 1) }
    }
}

/// A set of parties: at most the coordinator and 31 ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parties(u32);

impl Parties {
    pub fn insert(&mut self, party: Party) {
        self.0 |= 1 << party.bit();
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Party> {
        (0..u32::BITS).filter(move |bit| self.0 >> bit & 1 == 1).map(Party::from_bit)
    }
}

impl FromIterator<Party> for Parties {
    fn from_iter<I: IntoIterator<Item = Party>>(parties: I) -> Parties {
        let mut set = Parties::default();
        parties.into_iter().for_each(|party| set.insert(party));
        set
    }
}

impl fmt::Display for Parties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, party) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{party}")?;
        }
        Ok(())
    }
}

/// Why an epoch was given up, small enough to be stored with one atomic write: whoever is freed reads
/// from it whom to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Who gave it up.
    pub by: Party,
    /// For whom that party had waited in vain; empty when it had another reason.
    pub missing: Parties,
}

impl Cause {
    /// Never 0: that word means "not poisoned".
    pub fn encode(self) -> u64 {
        u64::from(self.missing.0) << 32 | u64::from(self.by.bit() + 1)
    }

    pub fn decode(word: u64) -> Option<Cause> {
        let by = (word as u32).checked_sub(1)?;
        Some(Cause { by: Party::from_bit(by), missing: Parties((word >> 32) as u32) })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.by)?;
        if !self.missing.is_empty() {
            write!(f, ", which had waited for {}", self.missing)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_its_word() {
        for by in [Party::Coordinator, Party::Rank(0), Party::Rank(15)] {
            for missing in [vec![], vec![Party::Rank(3), Party::Rank(15)], vec![Party::Coordinator]]
            {
                let cause = Cause { by, missing: missing.into_iter().collect() };
                assert_ne!(cause.encode(), 0);
                assert_eq!(Cause::decode(cause.encode()), Some(cause));
            }
        }
        assert_eq!(Cause::decode(0), None);
    }

    #[test]
    fn a_cause_reads_as_a_sentence() {
        let missing = [Party::Rank(2), Party::Rank(3)].into_iter().collect();
        let cause = Cause { by: Party::Rank(1), missing };
        assert_eq!(cause.to_string(), "rank 1, which had waited for rank 2, rank 3");
    }
}
