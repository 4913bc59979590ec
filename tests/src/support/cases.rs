//! How many cases the drawing suites draw.
//!
//! Other crates include this file by its path, so that all read one variable.

/// `few` times what the environment variable `STREAMVM_CASES` says; `few` without it. `make test` sets none, `make test-long` sets 10.
///
/// # Panics
/// If the variable is no number of at least 1.
#[allow(unreachable_pub, reason = "public in the harness alone")]
pub fn cases(few: u64) -> u64 {
    let factor = std::env::var("STREAMVM_CASES").map_or(1, |text| match text.parse() {
        Ok(factor @ 1..) => factor,
        _ => panic!("STREAMVM_CASES is \"{text}\"; set it to a number of at least 1"),
    });
    few * factor
}
