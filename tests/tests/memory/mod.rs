//! Memory and what it holds: where it comes from, when it is used again, copies, random numbers.

mod adopted;
mod kept;
mod lent;
mod memory;
mod random_numbers;
mod reuse;
mod staging;
