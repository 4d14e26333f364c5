//! Amounts of memory: a size in bytes, and a part of what is there.

use std::fmt;

use crate::value::{Kind, Value, parse_integer};

/// A number of bytes above 0, written with or without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    const BINARY: [(&str, u64); 4] =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    const DECIMAL: [(&str, u64); 4] =
        [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl Value for ByteSize {
    const KIND: Kind = Kind::TextOrInteger;

    fn accepts() -> String {
        let units: Vec<&str> =
            Self::BINARY.iter().chain(&Self::DECIMAL).map(|(unit, _)| *unit).collect();
        format!(
            "a whole number of bytes above 0, with or without a unit ({}), such as 512MiB",
            units.join(", ")
        )
    }

    fn parse(text: &str) -> Option<Self> {
        // None of the units is the end of another.
        let (number, unit) = Self::BINARY
            .iter()
            .chain(&Self::DECIMAL)
            .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
            .unwrap_or((text, 1));
        let bytes = parse_integer::<u64>(number)?.checked_mul(unit)?;
        (bytes > 0).then_some(Self(bytes))
    }

    /// In the largest binary unit that leaves no fraction.
    fn show(&self) -> String {
        Self::BINARY
            .iter()
            .rev()
            .find(|(_, bytes)| self.0.is_multiple_of(*bytes))
            .map_or_else(|| self.0.to_string(), |(unit, bytes)| format!("{}{unit}", self.0 / bytes))
    }
}

/// A part of the memory that is free: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct MemoryFraction(f64);

impl MemoryFraction {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for MemoryFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl Value for MemoryFraction {
    const KIND: Kind = Kind::Number;

    fn accepts() -> String {
        "a number above 0 and at most 1, such as 0.9".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        // Spellings such as "nan", "1e-3" and "+1" are numbers to the parser; none of them is one here.
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        text.parse().ok().filter(|part| *part > 0.0 && *part <= 1.0).map(Self)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        for (text, bytes) in [
            ("1", 1),
            ("512MiB", 512 << 20),
            ("4GiB", 4 << 30),
            ("2GB", 2_000_000_000),
            ("3KB", 3_000),
            ("1KiB", 1_024),
            ("16777215TiB", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(ByteSize::parse(text).map(ByteSize::bytes), Some(bytes), "{text:?}");
        }
        for wrong in [
            "",
            "0",
            "0GiB",
            "GiB",
            "4 GiB",
            "4gib",
            "4G",
            "4Gi",
            "1.5GiB",
            "-1GiB",
            "+1",
            "4GiBB",
            "1e9",
            "16777216TiB",
            "18446744073709551616",
            "4KiBMB",
        ] {
            assert_eq!(ByteSize::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_size_is_shown_in_the_largest_binary_unit_that_is_exact() {
        for (given, shown) in [
            ("4294967296", "4GiB"),
            ("1024MiB", "1GiB"),
            ("1536MiB", "1536MiB"),
            ("2GB", "1953125KiB"),
            ("1000", "1000"),
            ("1001", "1001"),
            ("1024", "1KiB"),
            ("10240", "10KiB"),
        ] {
            let size = ByteSize::parse(given).unwrap();
            assert_eq!(size.to_string(), shown);
            assert_eq!(ByteSize::parse(shown), Some(size));
        }
    }

    #[test]
    fn a_fraction_is_above_0_and_at_most_1() {
        for right in ["1", "0.5", "1.0", ".25", "0.001"] {
            let part = MemoryFraction::parse(right).unwrap();
            assert_eq!(MemoryFraction::parse(&part.show()), Some(part), "{right:?}");
        }
        for wrong in ["", "0", "0.0", "1.01", "-0.5", "nan", "inf", "1e-3", "50%", ".", "0.5.1"] {
            assert_eq!(MemoryFraction::parse(wrong), None, "{wrong:?}");
        }
    }
}
