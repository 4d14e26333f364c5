//! Read-only file mappings.
