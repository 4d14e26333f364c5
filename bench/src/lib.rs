//! What a benchmark of a serving daemon is made of: load, samples, fits, records and reports.
