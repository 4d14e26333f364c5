//! The types of settings that would be plain numbers and texts otherwise, so that no two of them can
//! be swapped.

use std::fmt;

use crate::value::{Kind, Value, parse_integer};

/// Defines a newtype over an integer with the range of values it accepts.
macro_rules! bounded {
    ($(#[doc = $doc:literal])* $name:ident($inner:ty), $min:literal..=$max:literal) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub(super) $inner);

        impl $name {
            /// The number.
            pub fn get(self) -> $inner {
                self.0
            }
        }

        impl Value for $name {
            const KIND: Kind = Kind::Integer;

            fn accepts() -> String {
                format!("a whole number from {} to {}", $min, $max)
            }

            fn parse(text: &str) -> Option<Self> {
                parse_integer(text).filter(|value| ($min..=$max).contains(value)).map(Self)
            }

            fn show(&self) -> String {
                self.0.to_string()
            }
        }
    };
}

bounded! {
    /// Number of ranks; the shared segment has room for sixteen.
    WorldSize(usize), 1..=16
}

bounded! {
    /// Compute threads of one rank.
    ThreadCount(usize), 1..=1024
}

bounded! {
    /// Positions of one sequence, prompt and answer together.
    ContextLength(usize), 1..=4_194_304
}

bounded! {
    /// Sequences computed at a time.
    SequenceLimit(usize), 1..=1024
}

bounded! {
    /// Requests that may wait.
    QueueLimit(usize), 0..=1_000_000
}

bounded! {
    /// Times the ranks are started again within the window that counts.
    RestartCount(usize), 0..=1_000
}

bounded! {
    /// Largest body of an HTTP request, in bytes.
    RequestBytes(usize), 1_024..=1_073_741_824
}

bounded! {
    /// Messages of one chat.
    MessageLimit(usize), 1..=1_000_000
}

/// Most prompt tokens in one forward call: a positive multiple of 64, because the chunked recurrence is
/// cut at absolute multiples of 64 and a budget that is not one would move the cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefillBudget(pub(super) usize);

impl PrefillBudget {
    /// The recurrence's chunk.
    const STEP: usize = 64;
    const MAX: usize = 65_536;

    /// The number of tokens.
    pub fn get(self) -> usize {
        self.0
    }

    /// The smallest budget that has room for so many tokens, if there is one.
    pub fn with_room_for(tokens: usize) -> Option<Self> {
        (tokens <= Self::MAX).then(|| Self(tokens.max(1).next_multiple_of(Self::STEP)))
    }
}

impl Value for PrefillBudget {
    const KIND: Kind = Kind::Integer;

    fn accepts() -> String {
        format!("a multiple of {} from {} to {}", Self::STEP, Self::STEP, Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        parse_integer(text)
            .filter(|tokens| {
                (Self::STEP..=Self::MAX).contains(tokens) && tokens.is_multiple_of(Self::STEP)
            })
            .map(Self)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// How many prompt tokens of several requests share a forward call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedRows {
    /// As many as what calls have cost so far makes worth while.
    Auto,
    /// At most so many.
    AtMost(usize),
}

impl MergedRows {
    const AUTO: &str = "auto";
    /// More would never fit a call.
    const MAX: usize = PrefillBudget::MAX;
}

impl fmt::Display for MergedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl Value for MergedRows {
    const KIND: Kind = Kind::TextOrInteger;

    fn accepts() -> String {
        format!("{} or a whole number from 1 to {}", Self::AUTO, Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            Self::AUTO => Some(Self::Auto),
            rows => {
                let rows = parse_integer(rows).filter(|rows| (1..=Self::MAX).contains(rows))?;
                Some(Self::AtMost(rows))
            }
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => Self::AUTO.to_owned(),
            Self::AtMost(rows) => rows.to_string(),
        }
    }
}

/// What was asked for as a model: a directory or an `owner/name` of a model hub. Which of the two it
/// is depends on what is on the disk, so that is decided when the model is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName(String);

impl ModelName {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for ModelName {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        "a directory or an owner/name of the model hub".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        (!text.trim().is_empty()).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// What is logged: a level, or a list of `target=level`.
///
/// A bare word that is no level would be read as the name of a target by the logger, and so a slip of
/// the hand would silence everything; it is refused instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(pub(super) String);

impl LogFilter {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

    /// The value of `RUST_LOG`, which belongs to all programs and may name targets of others.
    pub(crate) fn foreign(text: String) -> Self {
        Self(text)
    }

    /// The filter.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for LogFilter {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        format!("one of {}, or a list such as info,pocket_actors=debug", Self::LEVELS.join(", "))
    }

    fn parse(text: &str) -> Option<Self> {
        let is_level = |word: &str| Self::LEVELS.contains(&word.to_ascii_lowercase().as_str());
        let mut parts = text.split(',');
        parts
            .all(|part| match part.rsplit_once('=') {
                Some((target, level)) => !target.is_empty() && is_level(level),
                None => is_level(part),
            })
            .then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// Defines an enum whose variants have one name each.
macro_rules! named {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $variant_doc:literal])* $variant:ident = $text:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $variant_doc])* $variant,)*
        }

        impl Value for $name {
            const KIND: Kind = Kind::Text;

            fn accepts() -> String {
                ["one of", &[$($text),*].join(", ")].join(" ")
            }

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }

            fn show(&self) -> String {
                match self { $(Self::$variant => $text,)* }.to_owned()
            }
        }
    };
}

named! {
    /// What ranks compute on.
    DeviceKind {
        /// The best there is; in this version, the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// Huawei Ascend; this version is built without it and says so.
        Ascend = "ascend",
    }
}

named! {
    /// How keys and values are stored.
    KvCacheDtype {
        /// As they are computed, four bytes a number.
        Float32 = "float32",
        /// Rounded to bfloat16, two bytes a number.
        Bf16 = "bf16",
    }
}

named! {
    /// How log lines are written.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefill_budget_is_a_multiple_of_64() {
        assert_eq!(PrefillBudget::parse("64").map(PrefillBudget::get), Some(64));
        assert_eq!(PrefillBudget::parse("65536").map(PrefillBudget::get), Some(65_536));
        for wrong in ["0", "1", "63", "65", "100", "65600", "-64", ""] {
            assert_eq!(PrefillBudget::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_budget_has_room() {
        let room = |tokens| PrefillBudget::with_room_for(tokens).map(PrefillBudget::get);
        assert_eq!([room(0), room(64), room(65)], [Some(64), Some(64), Some(128)]);
        assert_eq!([room(65_536), room(65_537)], [Some(65_536), None]);
    }

    #[test]
    fn ranges_hold_at_both_ends() {
        assert_eq!(WorldSize::parse("0"), None);
        assert_eq!(WorldSize::parse("1").map(WorldSize::get), Some(1));
        assert_eq!(WorldSize::parse("16").map(WorldSize::get), Some(16));
        assert_eq!(WorldSize::parse("17"), None);
        assert_eq!(QueueLimit::parse("0").map(QueueLimit::get), Some(0));
    }

    #[test]
    fn merged_rows_are_a_number_or_left_to_the_engine() {
        assert_eq!(MergedRows::parse("auto"), Some(MergedRows::Auto));
        assert_eq!(MergedRows::parse("1"), Some(MergedRows::AtMost(1)));
        assert_eq!(MergedRows::parse("65536").unwrap().show(), "65536");
        for wrong in ["", "0", "Auto", "-1", "65537", "all"] {
            assert_eq!(MergedRows::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_log_filter_names_levels() {
        for right in ["info", "DEBUG", "off", "warn,pocket_actors=trace", "a[span]=info,error"] {
            assert!(LogFilter::parse(right).is_some(), "{right:?}");
        }
        for wrong in ["", "infoo", "pocketd", "info,", "pocketd=loud", "=info", "info debug"] {
            assert!(LogFilter::parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn names_are_exact() {
        assert_eq!(DeviceKind::parse("ascend"), Some(DeviceKind::Ascend));
        assert_eq!(DeviceKind::parse("CPU"), None);
        assert_eq!(LogFormat::accepts(), "one of text, json");
        assert_eq!(ModelName::parse("  "), None);
    }
}
