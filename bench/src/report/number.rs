//! Numbers as people read them.

use crate::law::Estimate;
use crate::stats::{Interval, Ratio};

/// A number with four significant digits at most, no zeros at the end, and powers of ten only where there
/// is no other way: `3703`, `142.6`, `0.002134`, `1.2e9`.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if !(1e-4..1e7).contains(&size) {
        return format!("{value:.2e}");
    }
    let before_point = size.log10().floor() as i32 + 1;
    let decimals = usize::try_from(4 - before_point).unwrap_or(0);
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A number, or a dash where there is none.
pub fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// A count with what is counted: `1 slot`, `4 slots`.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// An interval, or a dash where there is none.
pub fn interval(interval: Option<Interval>) -> String {
    match interval {
        Some(Interval { low, high }) => format!("{} to {}", number(low), number(high)),
        None => "-".to_owned(),
    }
}

/// An estimate with its interval, if it has one: `142.6 (139.5 to 145.7)`.
pub fn estimate(estimate: &Estimate) -> String {
    match estimate.interval {
        Some(_) => format!("{} ({})", number(estimate.value), interval(estimate.interval)),
        None => number(estimate.value),
    }
}

/// A ratio to three decimals with its interval, if it has one: `1.634x (1.601 to 1.668)`.
pub fn ratio(ratio: &Ratio) -> String {
    match ratio.interval {
        Some(Interval { low, high }) => format!("{:.3}x ({low:.3} to {high:.3})", ratio.ratio),
        None => format!("{:.3}x", ratio.ratio),
    }
}

/// An estimated ratio, as [`ratio`] shows it.
pub fn estimated_ratio(estimate: &Estimate) -> String {
    ratio(&Ratio { ratio: estimate.value, interval: estimate.interval })
}

/// A share as a percentage with one decimal.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_what_counts() {
        for (value, text) in [
            (0.0, "0"),
            (3703.0, "3703"),
            (142.612, "142.6"),
            (0.002134, "0.002134"),
            (2.5, "2.5"),
            (-46.61, "-46.61"),
            (51_244.0, "51244"),
            (1.25e9, "1.25e9"),
            (f64::NAN, "-"),
            (9_999.96, "10000"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((counted(1, "slot"), counted(4, "slot")), ("1 slot".into(), "4 slots".into()));
        let interval = Some(Interval { low: 1.0, high: 2.25 });
        assert_eq!(estimate(&Estimate { value: 1.5, interval }), "1.5 (1 to 2.25)");
        assert_eq!(estimated_ratio(&Estimate { value: 1.5, interval: None }), "1.500x");
        assert_eq!(ratio(&Ratio { ratio: 1.5, interval }), "1.500x (1.000 to 2.250)");
        assert_eq!((or_dash(None), percent(0.1234)), ("-".to_owned(), "12.3 %".to_owned()));
    }
}
