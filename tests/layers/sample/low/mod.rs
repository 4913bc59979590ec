//! A layer with imports that run up.
//!
//! Layer: uses `lib.rs` and no other folder; is used by all other folders except
//! `high`.

mod inner;
mod other;
mod seen_by_tests;

use crate::high;
