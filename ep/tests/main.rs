//! Suites that share one process.

#[path = "../../tests/src/support/cases.rs"]
mod cases;
mod conditions;
mod copies;
mod gradients;
mod half;
mod kernel_errors;
mod kernels_reference;
mod no_allocation;
mod random;
mod reference;
mod sim_programs;
mod special_values;
mod tensors;
mod threads;
