//! A layer with imports that run up.

mod inner;
mod other;
mod seen_by_tests;

use crate::high;
