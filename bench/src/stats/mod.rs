//! Numbers about samples: summaries, least squares, intervals, ratios.
//!
//! Everything here is plain arithmetic on slices of `f64`. Intervals are two-sided Student's t intervals
//! at [`CONFIDENCE`] unless a function takes a level of its own. Where a number does not exist (the
//! standard error of a fit without a point to spare, say) it is `None`, never a NaN.

mod influence;
mod least_squares;
mod ratio;
mod student;
mod summary;

pub use influence::{Influence, LargestMove};
pub use least_squares::{Coefficient, Fit, FitError, Residual, Weighting, least_squares};
pub use ratio::{Moments, Ratio, RatioError, paired_ratio, ratio_of_means};
pub use student::{CONFIDENCE, Interval, mean_interval, p_value, t_quantile};
pub use summary::{Summary, mean, median, percentile, population_std, sample_std};
