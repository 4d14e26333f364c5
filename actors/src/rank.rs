//! The rank process.

/// Runs a rank: what `PROGRAM rank` does. The coordinator starts it with one end of a socket pair as
/// standard input; started by hand it says so and returns 2. Returns the exit code.
pub fn rank_main() -> i32 {
    unimplemented!()
}
