// use crate::nowhere;
use crate::{high::{upper::Upper, other}, low};

const TEXT: &str = "crate::nowhere";

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::high::of_tests;
}
