use super::{super::high, inner};
use crate::Renamed;

pub struct Other;

#[cfg(not(test))]
mod not_of_tests {
    use crate::high::second::Second;
}
