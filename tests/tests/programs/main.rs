//! Programs: recorded once, compiled, and run many times, with the same results as eager calls.

mod failures;
mod fusion;
mod random;
mod recording;
mod runs;
