//! Helpers of all suites: engines to run on, gates, deadlines, random numbers, and the log.
//!
//! Layer: uses no other folder; is used by all of them except `corpus`, and by the suites through the root of the crate.
//!
//! Main types: a [`Gate`](gate::Gate) holds a function inside the engine until the test opens it; [`within`](patience::within) sets a time
//! limit on a call; [`Random`](random::Random) draws numbers from a seed; [`each_seed`](many::each_seed) runs a check for each of many
//! seeds, and [`cases`](cases::cases) says how many; [`Notes`](notes::Notes) is an engine that records its instructions and runs none.

pub(crate) mod cases;
pub(crate) mod engines;
pub(crate) mod gate;
pub(crate) mod held;
pub(crate) mod logged;
pub(crate) mod many;
pub(crate) mod notes;
pub(crate) mod patience;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod registered;
pub(crate) mod setup;
pub(crate) mod trip;
pub(crate) mod written;
