//! Runs the program as a person does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, process};

use orders::command_test::Program;

const PROGRAM: Program = Program {
    path: env!("CARGO_BIN_EXE_quickstart"),
};

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = env::temp_dir().join(format!("quickstart-{test}-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs it with a folder of its own for what is temporary.
fn run(temporary: &Path, orders: &str, database: Option<&Path>) -> Output {
    let mut command = Command::new(PROGRAM.path);
    command.env("TMPDIR", temporary).args(["--orders", orders]);
    if let Some(database) = database {
        command.arg("--database").arg(database);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// The last line says that everything is well, for so many orders.
fn passed(output: &Output, orders: &str) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let last = out.lines().last().unwrap();
    let expected = format!(
        "{orders} committed, {orders} delivered, 0 lost, 0 from rolled-back transactions, order kept for "
    );
    assert!(last.starts_with(&expected), "{last}");
}

#[test]
fn runs_side_by_side_end_with_the_audit() {
    PROGRAM.runs_side_by_side();
}

#[test]
fn wrong_arguments_end_with_two() {
    PROGRAM.refuses_wrong_arguments();
}

#[test]
fn nothing_is_left_of_a_database_that_was_not_asked_for() {
    let folder = Folder::new("nothing-left");
    passed(&run(&folder.0, "50", None), "50");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn a_database_is_kept_and_a_second_run_goes_on_with_it() {
    let folder = Folder::new("kept");
    let database = folder.0.join("my.db");
    for orders in ["120", "30"] {
        passed(&run(&folder.0, orders, Some(&database)), orders);
        assert!(database.exists());
    }
}

#[test]
fn a_database_that_cannot_be_opened_is_named() {
    let folder = Folder::new("cannot-be-opened");
    let output = run(&folder.0, "10", Some(&folder.0.join("missing/my.db")));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.starts_with("error: "), "{message}");
    assert!(message.contains("missing/my.db"), "{message}");
    assert!(
        message.contains("unable to open database file"),
        "{message}"
    );
}
