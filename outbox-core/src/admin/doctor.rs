//! What a look at a store's surroundings finds.

use std::fmt;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Could not be looked at, for want of a right or since this server does not say.
    Unknown,
    /// Works today, and costs or endangers something.
    Warning,
    /// Does not work, or will soon not.
    Problem,
}

impl Severity {
    /// One word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that was looked at, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in words that stay the same: `server version`.
    pub check: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to mend it; empty where there is nothing to mend.
    pub mend: String,
}
