//! The first page of a store: what it is for, and whether it is complete.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::super::matrix::TILE;

/// "pocketWT", the first bytes of every store.
const MAGIC: u64 = u64::from_le_bytes(*b"pocketWT");

/// Raised with every change of what lies where or means what; the tiles of the matrices included.
const VERSION: u64 = 1;

/// Words: magic, version, outputs of a tile, bytes of the file, four of identity, end.
const WORDS: usize = 9;

/// Where the end lies in the file.
const END: u64 = 8 * 8;

/// See the module. It is read and written by system calls, not mapped: a write that returned is seen
/// by every later read of any process, and comes after all that the caller did before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the file.
    pub bytes: u64,
    /// What the weights are of.
    pub identity: [u8; 32],
    /// Where the last matrix ends, once all are packed.
    pub end: Option<u64>,
}

impl Header {
    pub fn write(&self, file: &File) -> io::Result<()> {
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&[MAGIC, VERSION, TILE as u64, self.bytes]);
        for (word, bytes) in words[4..8].iter_mut().zip(self.identity.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words[8] = self.end.unwrap_or(0);
        file.write_all_at(&words.map(u64::to_le_bytes).concat(), 0)
    }

    /// The header of a file, or what is wrong with it.
    pub fn read(file: &File) -> Result<Header, String> {
        let mut bytes = [0; 8 * WORDS];
        file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if words[0] != MAGIC {
            return Err("it does not begin like packed weights of pocketd".to_string());
        }
        let expect = |what, expected: u64, found: u64| match expected == found {
            true => Ok(()),
            false => Err(format!("{what}: expected {expected}, found {found}")),
        };
        expect("version of the layout", VERSION, words[1])?;
        expect("outputs of a tile", TILE as u64, words[2])?;
        let mut identity = [0; 32];
        identity.copy_from_slice(&bytes[32..64]);
        Ok(Header { bytes: words[3], identity, end: (words[8] != 0).then_some(words[8]) })
    }

    /// Says that all matrices are packed, up to byte `end`.
    pub fn complete(file: &File, end: u64) -> io::Result<()> {
        file.write_all_at(&end.to_le_bytes(), END)
    }
}
