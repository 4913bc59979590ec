//! CPU kernels, launched by streams of CPU devices: beside a naive reference, on operands of all forms, and where they fail.

#[path = "../../../../tests/src/support/cases.rs"]
mod cases;
mod copies;
mod gradients;
mod half;
mod kernel_errors;
mod kernels_reference;
mod random;
mod reference;
mod special_values;
mod tensors;
mod threads;
