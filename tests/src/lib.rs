//! Harness and cross-crate suites of streamvm.
