//! Failures: who hears of them, what heals them, and those that were faults of the engine.

mod deep;
mod failures;
mod forgotten;
mod healing;
mod regressions;
