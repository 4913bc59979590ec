//! Functions: what callers give an engine to run, and how it runs them.

mod calls;
mod closures;
mod ends;
mod full_queue;
mod operations;
mod profile;
mod push;
mod push_async;
mod push_failures;
mod push_pools;
mod push_scenarios;
mod random_functions;
mod workers;
