// use crate::nowhere;
use crate::{high::{upper::Upper, other}, low};
use crate::OfRoot;
use super::other::Other;

const TEXT: &str = "crate::nowhere";
const RAW: &str = r#"one " and crate::high::second"#;
const QUOTE: char = '"';

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::high::of_tests;
}
