//! Typed values that are given as text.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The shape of a value, as shown in tables and as checked in a TOML file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; `1` and `0` mean the same.
    Boolean,
    /// A whole number.
    Integer,
    /// A number of seconds, fractions allowed.
    Seconds,
    /// A number, fractions allowed.
    Number,
    /// A word or a whole number; in a TOML file the first in quotes, the second without or with.
    TextOrInteger,
    /// Anything else, in quotes in a TOML file.
    Text,
}

impl Kind {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Boolean => "boolean",
            Kind::Integer => "integer",
            Kind::Seconds => "seconds",
            Kind::Number => "number",
            Kind::TextOrInteger => "text or integer",
            Kind::Text => "text",
        }
    }
}

/// A value with one parser, whatever source its text came from.
pub(crate) trait Value: Sized {
    /// Its shape.
    const KIND: Kind;

    /// Whether nobody may see it, also not in an error that refuses it.
    const SECRET: bool = false;

    /// What is accepted, as the end of the sentence "accepted is ...".
    fn accepts() -> String;

    /// Reads it; `None` when the text is not what [`Value::accepts`] says.
    fn parse(text: &str) -> Option<Self>;

    /// The text that would parse to it; empty for an option that is not set.
    fn show(&self) -> String;
}

impl Value for bool {
    const KIND: Kind = Kind::Boolean;

    fn accepts() -> String {
        "0, 1, false or true".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        if *self { "1" } else { "0" }.to_owned()
    }
}

impl Value for u16 {
    const KIND: Kind = Kind::Integer;

    fn accepts() -> String {
        format!("a whole number from 0 to {}", u16::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        parse_integer(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        "a text that is not empty".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        (!text.trim().is_empty()).then(|| text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        "a path".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        String::parse(text).map(Self::from)
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// An option is absent by default; no text means "absent", so that a lower source is not undone by
/// accident.
impl<T: Value> Value for Option<T> {
    const KIND: Kind = T::KIND;
    const SECRET: bool = T::SECRET;

    fn accepts() -> String {
        T::accepts()
    }

    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
}

/// Whole microseconds, at most a minute: how long a simulated device takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Micros(u64);

impl Micros {
    const MAX: u64 = 60_000_000;

    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// True for no time at all.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Value for Micros {
    const KIND: Kind = Kind::Integer;

    fn accepts() -> String {
        format!("a whole number of microseconds from 0 to {}", Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        parse_integer(text).filter(|micros| *micros <= Self::MAX).map(Self)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A time limit in seconds, above zero and at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(Duration);

impl Seconds {
    const MIN: f64 = 0.001;
    const MAX: f64 = 86_400.0;

    /// A whole number of seconds; for built-in defaults.
    pub(crate) const fn whole(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// As a duration.
    pub fn duration(self) -> Duration {
        self.0
    }
}

impl Value for Seconds {
    const KIND: Kind = Kind::Seconds;

    fn accepts() -> String {
        format!("a number of seconds from {} to {}", Self::MIN, Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        // Spellings such as "inf", "nan" and "+5" are numbers to the parser; none of them is one here.
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        let seconds: f64 = text.parse().ok()?;
        (Self::MIN..=Self::MAX).contains(&seconds).then(|| Self(Duration::from_secs_f64(seconds)))
    }

    fn show(&self) -> String {
        self.0.as_secs_f64().to_string()
    }
}

/// Time between two events, where 0 seconds mean never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(Option<Seconds>);

impl Period {
    const NEVER: &str = "0";

    /// A whole number of seconds; for built-in defaults.
    pub(crate) const fn whole(seconds: u64) -> Self {
        Self(Some(Seconds::whole(seconds)))
    }

    /// As a duration, unless it is never.
    pub fn duration(self) -> Option<Duration> {
        self.0.map(Seconds::duration)
    }
}

impl Value for Period {
    const KIND: Kind = Kind::Seconds;

    fn accepts() -> String {
        format!("{}, or {}", Self::NEVER, Seconds::accepts())
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            Self::NEVER => Some(Self(None)),
            seconds => Seconds::parse(seconds).map(|seconds| Self(Some(seconds))),
        }
    }

    fn show(&self) -> String {
        self.0.as_ref().map_or(Self::NEVER.to_owned(), Seconds::show)
    }
}

/// Digits only: the standard parser would also take a plus sign.
pub(crate) fn parse_integer<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_have_four_spellings() {
        assert_eq!(bool::parse("1"), Some(true));
        assert_eq!(bool::parse("true"), Some(true));
        assert_eq!(bool::parse("0"), Some(false));
        assert_eq!(bool::parse("false"), Some(false));
        for wrong in ["", "yes", "on", "TRUE", " 1", "2"] {
            assert_eq!(bool::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn integers_are_digits_only() {
        assert_eq!(parse_integer::<u64>("0017"), Some(17));
        for wrong in ["", "+1", "-1", "1.0", "1e3", "0x10", "1_000", "99999999999999999999"] {
            assert_eq!(parse_integer::<u64>(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn micros_stop_at_a_minute() {
        assert_eq!(Micros::parse("60000000").unwrap().duration(), Duration::from_secs(60));
        assert_eq!(Micros::parse("60000001"), None);
    }

    #[test]
    fn seconds_take_fractions_and_refuse_odd_numbers() {
        assert_eq!(Seconds::parse("0.5").unwrap().duration(), Duration::from_millis(500));
        assert_eq!(Seconds::parse("30").unwrap().show(), "30");
        for wrong in ["", "0", "-1", "nan", "inf", "1e3", "86401", "1s", "."] {
            assert_eq!(Seconds::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_period_is_seconds_or_never() {
        assert_eq!(Period::parse("0").unwrap().duration(), None);
        assert_eq!(Period::parse("0.5").unwrap().duration(), Some(Duration::from_millis(500)));
        for wrong in ["", "0.0", "-1", "never", "86401"] {
            assert_eq!(Period::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn shown_values_parse_back() {
        for period in ["0", "30", "0.25"] {
            assert_eq!(Period::parse(period).unwrap().show(), period);
        }
        assert_eq!(bool::parse(&true.show()), Some(true));
        assert_eq!(Micros::parse(&Micros(250).show()), Some(Micros(250)));
        let half = Seconds::parse("0.25").unwrap();
        assert_eq!(Seconds::parse(&half.show()), Some(half));
        assert_eq!(Option::<u16>::None.show(), "");
    }
}
