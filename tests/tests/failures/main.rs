//! Failures: who hears of them, what heals them, and those that were faults of the engine.

mod failures;
mod healing;
mod regressions;
