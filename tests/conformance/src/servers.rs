//! Where the real servers of the tests are.

/// The value of a variable that names one of them.
///
/// # Panics
///
/// When it is not set, with what to do then: a test that skips itself looks like one that passes.
pub fn address(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `eval \"$(scripts/services env)\"` first")
    })
}
