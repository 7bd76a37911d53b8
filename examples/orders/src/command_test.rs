//! Tests of an example as a person runs it: small runs side by side, wrong arguments, servers that are
//! away. An example joins with [`command_tests!`](crate::command_tests).

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing listens there.
const NO_POSTGRES: &str = "postgres://somebody:secret@127.0.0.1:1/orders";

/// The program of an example.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its path.
    pub path: &'static str,
}

impl Program {
    fn start(self, arguments: &[&str]) -> Child {
        Command::new(self.path)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }

    fn run(self, arguments: &[&str]) -> Output {
        self.start(arguments)
            .wait_with_output()
            .expect("the program ends")
    }

    /// Runs beside each other do not meet, show their progress, and end with the audit.
    pub fn runs_side_by_side(self) {
        let runs = ["100", "1"].map(|orders| self.start(&["--orders", orders]));
        let expected = [
            "100 committed, 100 delivered, 0 lost, 0 from rolled-back transactions, order kept for ",
            "1 committed, 1 delivered, 0 lost, 0 from rolled-back transactions, order kept for 1 keys",
        ];
        for (run, expected) in runs.into_iter().zip(expected) {
            let output = run.wait_with_output().expect("the program ends");
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{out}{err}");
            let last = out.lines().last().unwrap_or_default();
            assert!(last.starts_with(expected), "{last}");
            assert!(err.contains("read back"), "no progress was shown: {err}");
        }
    }

    /// Wrong arguments end with code 2 and are named.
    pub fn refuses_wrong_arguments(self) {
        for wrong in [
            &["--orders", "0"][..],
            &["--orders", "1000001"],
            &["--orders", "many"],
            &["--order", "10"],
            &["10"],
        ] {
            let output = self.run(wrong);
            assert_eq!(output.status.code(), Some(2), "{wrong:?}");
            assert!(text(&output.stderr).contains(wrong[0]), "{wrong:?}");
        }
        assert!(self.run(&["--help"]).status.success());
    }

    /// Postgres that is away is named soon.
    pub fn names_postgres_that_is_away(self) {
        self.names_what_is_away(&["--database-url", NO_POSTGRES], "Postgres");
    }

    /// A server at port 1 of this machine, where nothing listens, is named soon, with what to do and
    /// without the password `secret`.
    pub fn names_what_is_away(self, arguments: &[&str], server: &str) {
        let started = Instant::now();
        let output = self.run(arguments);
        let took = started.elapsed();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        let place = format!("no {server} at 127.0.0.1:1 ");
        assert!(message.contains(&place), "{message}");
        assert!(message.contains("scripts/services up"), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("UTF-8")
}

/// The tests of one example: its program, the name of its broker, and arguments that name one at port 1.
#[macro_export]
macro_rules! command_tests {
    ($program:expr, $server:literal, $away:expr) => {
        const PROGRAM: $crate::command_test::Program =
            $crate::command_test::Program { path: $program };

        #[test]
        fn runs_side_by_side_end_with_the_audit() {
            PROGRAM.runs_side_by_side();
        }

        #[test]
        fn wrong_arguments_end_with_two() {
            PROGRAM.refuses_wrong_arguments();
        }

        #[test]
        fn a_server_that_is_away_is_named_soon() {
            PROGRAM.names_postgres_that_is_away();
            PROGRAM.names_what_is_away(&$away, $server);
        }
    };
}
