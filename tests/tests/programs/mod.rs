//! Programs: recorded once, compiled, and run many times, with the same results as eager calls.

mod block_functions;
mod block_waits;
mod blocks;
mod bounded;
mod cache;
mod calls;
mod devices;
mod failures;
mod functions;
mod fusion;
mod jit;
mod jobs;
mod judged;
mod lanes;
mod one_kernel;
mod parts;
mod plan_memory;
mod random;
mod recording;
mod runs;
mod scenarios;
mod sections;
mod stalls;
mod transfers;
mod watched;
