//! How a command fails: what is printed, and the exit code.

use std::error::Error;
use std::process::ExitCode;

use crate::settings::InvalidSettings;
use crate::text::escaped;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration is wrong, and nothing was done. Exit code 2, as of a wrong argument.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// The arguments say too little, and nothing was done. Exit code 2.
    #[error("{0}")]
    Usage(&'static str),
    /// Exit code 1.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl Failure {
    /// For what is no error of a called function.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self::Other(reason.into().into())
    }

    /// For an error of a called function. Its message must not hold secrets.
    pub(crate) fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Other(Box::new(error))
    }

    /// Prints the reason, with all its causes, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("outbox: {}", escaped(&chain(self)));
        ExitCode::from(match self {
            Self::Settings(_) | Self::Usage(_) => 2,
            Self::Other(_) => 1,
        })
    }
}

/// An error and its causes in one line; a cause that the line above it quotes is not said twice.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
