//! Suites of the harness: random programs, hazards, broken rules, and what every execution provider must do.

mod conformance;
mod hazards;
mod mutants;
mod random_faults;
mod random_programs;
