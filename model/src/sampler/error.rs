//! Why nothing could be sampled.

/// Why nothing could be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A parameter has a value it cannot have: the request is wrong.
    #[error("{field} is {value}; it must be {range}")]
    OutOfRange {
        /// Name of the parameter.
        field: String,
        /// The value given.
        value: String,
        /// The values it may have.
        range: String,
    },
    /// The model computed a logit that is not a number (or plus infinity): the engine is wrong.
    #[error("the logit of token {id} is {value}")]
    BadLogit {
        /// The first such token.
        id: u32,
        /// NaN or inf.
        value: String,
    },
    /// There is no token to choose: the row is empty or every logit is minus infinity.
    #[error("no token can be sampled from {count} logits")]
    NoCandidate {
        /// Length of the row.
        count: usize,
    },
}
