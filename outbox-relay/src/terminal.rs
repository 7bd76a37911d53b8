//! What is printed, and what is asked.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use crate::failure::Failure;

/// Prints to standard output. A reader that has gone away, such as `head`, is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// As [`print`], of what may be no text.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Asks for a yes. Where nobody can answer, that is a failure which names `--yes`.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(format!(
            "{question} Standard input is no terminal, so nobody can be asked: --yes says so beforehand, --dry-run only counts"
        )));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::new(format!("standard input: {error}")))?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
