//! Rules of the house, kept by a test, since rules kept by review decay.
//!
//! [`cargo`] tells what depends on what, [`files`] what the repository holds, [`rules`] looks at the
//! text of one file, pure, with tests of its own, and so do [`documents`] at their code and links, [`evidence`] at the
//! cases that have tests, and [`mutants`] at the list that `bin/mutants.rs` tries. The rules themselves are the tests in
//! `tests/`: one a rule, named after it. A rule has no list of exceptions beside it; where something is
//! allowed, the rule says how the place itself shows that.

pub mod cargo;
pub mod documents;
pub mod evidence;
pub mod files;
pub mod mutants;
pub mod rules;

/// Fails with the rule, the reason and every place that breaks it.
///
/// # Panics
///
/// When there is such a place.
pub fn keep(rule: &str, broken: &[String]) {
    assert!(
        broken.is_empty(),
        "{rule}\n\n    {}\n",
        broken.join("\n    ")
    );
}
