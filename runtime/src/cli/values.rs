//! Values that only the command line has.

/// Token ids, at least one. Whether the model knows them is for the model to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

/// Ids separated by commas, spaces allowed around them.
pub fn token_ids(text: &str) -> Result<TokenIds, String> {
    if text.trim().is_empty() {
        return Err("there are no ids; give at least one, such as --ids 1,2,3".to_owned());
    }
    let ids: Result<Vec<u32>, String> = text
        .split(',')
        .map(|piece| {
            let piece = piece.trim();
            piece.parse().map_err(|_| format!("'{piece}' is not a token id: a whole number from 0"))
        })
        .collect();
    ids.map(TokenIds)
}

/// A count of at least one.
pub fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=u32::MAX as usize).contains(count))
        .ok_or_else(|| format!("a whole number from 1 to {} is needed", u32::MAX))
}

/// Counts of at least one, at least one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts(pub Vec<usize>);

/// Counts separated by commas.
pub fn counts(text: &str) -> Result<Counts, String> {
    text.split(',').map(|piece| positive(piece.trim())).collect::<Result<_, _>>().map(Counts)
}

/// Tokens of a forward call: the recurrence is cut at multiples of 64.
pub fn chunk(text: &str) -> Result<usize, String> {
    positive(text)
        .ok()
        .filter(|tokens| tokens.is_multiple_of(64))
        .ok_or_else(|| "a positive multiple of 64 is needed".to_owned())
}

/// A duration that a measurement can take.
pub fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=60.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.01 to 60 is needed".to_owned())
}

/// Time between two looks.
pub fn interval(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.1 to 3600 is needed".to_owned())
}

/// A share of a limit.
pub fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a number from 0 to 1 is needed, such as 0.5".to_owned())
}

/// A text that ends an answer; an empty one would end it before it began.
pub fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("a stop text cannot be empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
