//! What `tests/tidy/mutants.list` says: lines that protect something, what to put in their place, and the
//! test that must fail then. Pure; `bin/mutants.rs` tries them.
//!
//! A mutant begins with its name; the lines that begin with `-` go, and those that begin with `+` come:
//!
//! ```text
//! name a-panic-is-not-caught
//! case 26
//! file outbox-core/src/relay/batch.rs
//! test -p outbox-core --test relay a_panic_of_the_publisher
//! -    the line that protects
//! +    what comes instead
//! ```
//!
//! `case` is the number in `docs/failures.md`, `test` what `cargo test` is given. The last word of it is a
//! part of a test's name; where several tests have it, each of them must fail.

use crate::files::File;

/// Where the list is, from the root of the repository.
pub const LIST: &str = "tests/tidy/mutants.list";

/// A protecting line that is taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutant {
    /// What is wrong with it.
    pub name: String,
    /// The case in `docs/failures.md`.
    pub case: u32,
    /// The file that is changed, from the root of the repository.
    pub file: String,
    /// Arguments of `cargo test` that say which test program it is.
    pub program: Vec<String>,
    /// What the names of the tests contain that must fail.
    pub test: String,
    /// The protecting lines, each with its line break.
    pub lines: String,
    /// What comes instead, the same way; perhaps nothing.
    pub instead: String,
}

impl Mutant {
    /// The text with the mutant in it; `None`: the lines are not there, or more than once.
    pub fn apply(&self, text: &str) -> Option<String> {
        let mut places = text.match_indices(&self.lines);
        let (at, _) = places.find(|(at, _)| *at == 0 || text[..*at].ends_with('\n'))?;
        if places.next().is_some() {
            return None;
        }
        let (before, after) = (&text[..at], &text[at + self.lines.len()..]);
        Some(format!("{before}{}{after}", self.instead))
    }

    /// Whether the row of its case names the test.
    fn is_named(&self, document: &File) -> bool {
        let (row, test) = (format!("| {} |", self.case), self.test.rsplit("::").next());
        let test = test.map(|test| format!("`{test}`")).unwrap_or_default();
        let mut rows = document.text.lines().filter(|line| line.starts_with(&row));
        rows.any(|row| row.contains(&test))
    }

    /// What is missing in it, or not there.
    fn wrong(&self, files: &[File]) -> Option<String> {
        let fault = if self.case == 0 || self.program.is_empty() || self.lines.is_empty() {
            "needs a case, a test and lines"
        } else {
            match files.iter().find(|file| file.path == self.file) {
                None => "its file is not there",
                Some(file) if self.apply(&file.text).is_none() => {
                    "its lines are not there exactly once"
                }
                Some(_) => return None,
            }
        };
        Some(format!("{}: {fault}", self.name))
    }
}

/// The mutants of a list.
///
/// # Errors
///
/// The lines that are not understood.
pub fn parse(list: &str) -> Result<Vec<Mutant>, Vec<String>> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut strange = Vec::new();
    for (at, line) in list.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("name ") {
            mutants.push(Mutant {
                name: name.to_owned(),
                ..Mutant::default()
            });
        } else if mutants.last_mut().and_then(|it| it.read(line)).is_none() {
            strange.push(format!("{LIST}:{}: {line}", at + 1));
        }
    }
    match strange.is_empty() {
        true => Ok(mutants),
        false => Err(strange),
    }
}

impl Mutant {
    /// Takes in a line; `None`: it is no line of a mutant.
    fn read(&mut self, line: &str) -> Option<()> {
        if let Some(gone) = line.strip_prefix('-') {
            self.lines.push_str(gone);
            self.lines.push('\n');
        } else if let Some(instead) = line.strip_prefix('+') {
            self.instead.push_str(instead);
            self.instead.push('\n');
        } else {
            match line.split_once(' ')? {
                ("case", case) => self.case = case.parse().ok()?,
                ("file", file) => file.clone_into(&mut self.file),
                ("test", words) => {
                    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
                    self.test = words.pop()?;
                    self.program = words;
                }
                _ => return None,
            }
        }
        Some(())
    }
}

/// What is wrong with a list: with its lines, with a mutant that fits nowhere, and with `document`, whose row
/// of the case must name the test, and which must say that these cases were seen failing.
pub fn strange(list: &str, document: &File, files: &[File]) -> Vec<String> {
    let mutants = match parse(list) {
        Ok(mutants) => mutants,
        Err(strange) => return strange,
    };
    let mut broken: Vec<String> = mutants.iter().filter_map(|it| it.wrong(files)).collect();
    let unnamed = mutants.iter().filter(|it| !it.is_named(document));
    broken
        .extend(unnamed.map(|it| format!("{}: case {} does not name its test", it.name, it.case)));
    let mut cases: Vec<u32> = mutants.iter().map(|mutant| mutant.case).collect();
    cases.sort_unstable();
    cases.dedup();
    let cases: Vec<String> = cases.iter().map(u32::to_string).collect();
    let said = format!("Cases {} ", cases.join(", "));
    if !document.text.contains(&said) {
        broken.push(format!("{} does not say: {said}", document.path));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "# Why.\n\nname it\ncase 7\nfile a.rs\ntest -p a --lib it::works\n-  if x {\n-  }\n+\n";

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_mutant_is_read_and_applied() {
        let mutants = parse(ONE).unwrap();
        let [mutant] = &mutants[..] else {
            panic!("{mutants:?}");
        };
        assert_eq!((mutant.name.as_str(), mutant.case), ("it", 7));
        assert_eq!(mutant.program, ["-p", "a", "--lib"]);
        assert_eq!(mutant.test, "it::works");
        let applied = mutant.apply("f {\n  if x {\n  }\n}\n");
        assert_eq!(applied.as_deref(), Some("f {\n\n}\n"));
        for elsewhere in [
            "f {\n    if x {\n  }\n}\n",
            "  if x {\n  }\n  if x {\n  }\n",
        ] {
            assert_eq!(mutant.apply(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn a_list_that_fits_nothing_is_found() {
        let document = file(
            "d.md",
            "Cases 7 were seen\n| 7 | x | `works` |\n| 8 | x | |\n",
        );
        let broken = |list: &str, source: &str| strange(list, &document, &[file("a.rs", source)]);
        assert_eq!(broken(ONE, "  if x {\n  }\n"), Vec::<String>::new());
        assert_eq!(
            broken(ONE, "x"),
            ["it: its lines are not there exactly once"]
        );
        let other = ONE.replace("a.rs", "b.rs");
        assert_eq!(broken(&other, ""), ["it: its file is not there"]);
        assert_eq!(broken("nonsense\n", ""), [format!("{LIST}:1: nonsense")]);
        let bare = broken("name it\ncase 7\ntest --lib works\n", "");
        assert_eq!(bare, ["it: needs a case, a test and lines"]);
        let more = ONE.replace("case 7", "case 8");
        let unsaid = [
            "it: case 8 does not name its test",
            "d.md does not say: Cases 8 ",
        ];
        assert_eq!(broken(&more, "  if x {\n  }\n"), unsaid);
    }
}
