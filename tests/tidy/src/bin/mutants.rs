//! Takes one protecting line after the other out of a copy of this checkout, and runs the test that must
//! fail then. Started by `scripts/mutants`; what it tries is in `tests/tidy/mutants.list`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use outbox_tidy::mutants::{LIST, Mutant, parse};
use serde_json::Value;

/// A test that takes longer has not failed.
const LONGEST: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    match run(env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every test passes with the line and fails without it.
fn run(names: Vec<String>) -> Result<bool, String> {
    let root = env::current_dir().map_err(|error| error.to_string())?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = root.join(target);
    let copy = Checkout::of(&root, &folder.join("mutants"))?;
    let list = copy.read(LIST)?;
    let mut mutants = parse(&list).map_err(|strange| strange.join("\n"))?;
    let is_asked = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part));
    mutants.retain(|mutant| is_asked(&mutant.name));

    let mut good = true;
    for (program, tests) in programs(&mutants) {
        eprintln!("all lines in place: {}", program.join(" "));
        let result = copy.test(program, &tests)?;
        if result != Verdict::Passed {
            eprintln!(
                "{} {}: {}",
                program.join(" "),
                tests.join(" "),
                result.say()
            );
            good = false;
        }
    }
    println!("| without the line, this is wrong | case | the test | it |");
    println!("| --- | --- | --- | --- |");
    for mutant in &mutants {
        let start = Instant::now();
        let result = copy.try_out(mutant)?;
        good &= matches!(result, Verdict::Failed(_));
        println!(
            "| {} | {} | `{}` | {}, {} s |",
            mutant.name,
            mutant.case,
            mutant.test,
            result.say(),
            start.elapsed().as_secs()
        );
    }
    Ok(good)
}

/// The tests of each test program.
fn programs(mutants: &[Mutant]) -> BTreeMap<&[String], Vec<&str>> {
    let mut programs: BTreeMap<&[String], Vec<&str>> = BTreeMap::new();
    for mutant in mutants {
        let tests = programs.entry(&mutant.program).or_default();
        tests.push(&mutant.test);
    }
    programs
}

/// What became of the tests that were asked for.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// All of them, so many.
    Failed(usize),
    /// So many, and so many not.
    Mixed(usize, usize),
    Hung,
    /// With the first line that says why.
    NotBuilt(String),
    /// It ended otherwise than by an assertion.
    Crashed,
}

impl Verdict {
    fn say(&self) -> String {
        match self {
            Self::Passed => "PASSES".to_owned(),
            Self::Failed(1) => "fails".to_owned(),
            Self::Failed(number) => format!("fails {number} times"),
            Self::Mixed(passed, failed) => format!("PASSES {passed} and fails {failed} times"),
            Self::Hung => format!("HAS NOT ENDED after {} s", LONGEST.as_secs()),
            Self::NotBuilt(why) => format!("IS NOT BUILT: {why}"),
            Self::Crashed => "ENDS WITHOUT A RESULT".to_owned(),
        }
    }
}

/// A copy of a checkout, with a build folder of its own.
struct Checkout {
    folder: PathBuf,
    build: PathBuf,
}

impl Checkout {
    /// What is in the checkout now, committed or not, except for files that git does not know.
    fn of(root: &Path, folder: &Path) -> Result<Self, String> {
        let copy = Self {
            folder: folder.join("checkout"),
            build: folder.join("build"),
        };
        let now = match git(root, &["stash", "create"])? {
            nothing if nothing.is_empty() => git(root, &["rev-parse", "HEAD"])?,
            changed => changed,
        };
        if copy.folder.exists() {
            git(
                &copy.folder,
                &["checkout", "--quiet", "--force", "--detach", &now],
            )?;
        } else {
            let path = copy.folder.display().to_string();
            git(root, &["worktree", "prune"])?;
            git(
                root,
                &["worktree", "add", "--quiet", "--detach", &path, &now],
            )?;
        }
        Ok(copy)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        fs::read_to_string(self.folder.join(path)).map_err(|error| format!("{path}: {error}"))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        fs::write(self.folder.join(path), text).map_err(|error| format!("{path}: {error}"))
    }

    /// Runs the mutant's tests with the mutant in place, and puts the line back.
    fn try_out(&self, mutant: &Mutant) -> Result<Verdict, String> {
        let text = self.read(&mutant.file)?;
        let mutated = mutant
            .apply(&text)
            .ok_or_else(|| format!("{}: its lines are not there exactly once", mutant.name))?;
        self.write(&mutant.file, &mutated)?;
        let verdict = self.test(&mutant.program, &[&mutant.test]);
        self.write(&mutant.file, &text)?;
        verdict
    }

    fn test(&self, program: &[String], tests: &[&str]) -> Result<Verdict, String> {
        let built = Command::new("cargo")
            .args(["test", "--quiet", "--no-run", "--message-format=json"])
            .args(program)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.build)
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let messages = String::from_utf8_lossy(&built.stdout);
        let messages: Vec<Value> = messages
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        if !built.status.success() {
            let mut texts = messages.iter().filter_map(|it| {
                let message = &it["message"];
                (message["level"] == "error").then(|| message["message"].as_str())?
            });
            let said = String::from_utf8_lossy(&built.stderr);
            return Ok(Verdict::NotBuilt(
                texts.next().unwrap_or(said.trim()).to_owned(),
            ));
        }
        let test_program = messages
            .iter()
            .filter(|it| it["profile"]["test"] == true)
            .find_map(|it| Some((it["executable"].as_str()?, it["manifest_path"].as_str()?)));
        let Some((executable, manifest)) = test_program else {
            return Err(format!("{} is no test program", program.join(" ")));
        };
        let package = Path::new(manifest).parent().unwrap_or(&self.folder);
        self.run(Path::new(executable), package, tests)
    }

    fn run(&self, executable: &Path, package: &Path, tests: &[&str]) -> Result<Verdict, String> {
        let output = self.build.join("output");
        let file = File::create(&output).map_err(|error| error.to_string())?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        let mut child = Command::new(executable)
            .args(tests)
            .current_dir(package)
            // As cargo does.
            .env("CARGO_MANIFEST_DIR", package)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .spawn()
            .map_err(|error| error.to_string())?;
        if !ends(&mut child)? {
            return Ok(Verdict::Hung);
        }
        let output = fs::read_to_string(&output).map_err(|error| error.to_string())?;
        Ok(verdict(&output))
    }
}

/// Whether it ends in time. It has ended after that.
fn ends(child: &mut Child) -> Result<bool, String> {
    let deadline = Instant::now() + LONGEST;
    let state = loop {
        match child.try_wait() {
            // wait: the poll of a bounded loop
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            state => break state,
        }
    };
    if let Ok(Some(_)) = state {
        return Ok(true);
    }
    let killed = child.kill().and_then(|()| child.wait());
    killed.map_err(|error| error.to_string())?;
    Ok(false)
}

/// What the output of a test program says.
fn verdict(output: &str) -> Verdict {
    let result = output.lines().find_map(|line| {
        let counts = line.strip_prefix("test result: ")?;
        let count = |of: &str| -> Option<usize> {
            let words: Vec<&str> = counts.split([' ', ';']).collect();
            let at = words.iter().position(|word| *word == of)?;
            words.get(at - 1)?.parse().ok()
        };
        Some((count("passed")?, count("failed")?))
    });
    match result {
        None | Some((0, 0)) => Verdict::Crashed,
        Some((_, 0)) => Verdict::Passed,
        Some((0, failed)) if output.contains("panicked at") => Verdict::Failed(failed),
        Some((passed, failed)) => Verdict::Mixed(passed, failed),
    }
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_that_fails_by_an_assertion_has_failed() {
        let result = |passed: usize, failed: usize| {
            format!(
                "test result: FAILED. {passed} passed; {failed} failed; 0 ignored; 9 filtered out"
            )
        };
        let said =
            |text: &str, passed, failed| verdict(&format!("{text}\n{}\n", result(passed, failed)));
        assert_eq!(
            said("thread 'it' panicked at it.rs:1:1:", 0, 2),
            Verdict::Failed(2)
        );
        assert_eq!(
            said("thread 'it' panicked at it.rs:1:1:", 1, 1),
            Verdict::Mixed(1, 1)
        );
        assert_eq!(said("an error", 0, 1), Verdict::Mixed(0, 1));
        assert_eq!(said("", 3, 0), Verdict::Passed);
        // The name of the test is wrong.
        assert_eq!(said("", 0, 0), Verdict::Crashed);
        assert_eq!(verdict("running 1 test\n"), Verdict::Crashed);
    }
}
