//! Programs: recorded once, compiled, and run many times, with the same results as eager calls.

mod cache;
mod failures;
mod jit;
mod random;
mod recording;
mod runs;
