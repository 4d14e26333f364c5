//! The CPU: placeholder.
