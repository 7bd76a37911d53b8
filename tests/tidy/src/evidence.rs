//! What `docs/failures.md` says, and the tests that show it.
//!
//! A row of its numbered tables begins with `| NUMBER |` and names its tests as links: the name of the
//! test in backticks, and the file that it is in. Whether they lead anywhere is a rule of all
//! [documents](crate::documents). Pure; like the rules it reads lines, not syntax.

use std::ops::RangeInclusive;

use crate::documents::links;
use crate::files::File;

/// The numbers that are not those of exactly one row, in ascending order, and rows that name nothing.
pub fn strange_rows(document: &File, numbers: RangeInclusive<u32>) -> Vec<String> {
    let rows: Vec<(u32, &str)> = document
        .text
        .lines()
        .filter_map(|line| {
            let number = line.strip_prefix("| ")?.split(" |").next()?;
            Some((number.parse().ok()?, line))
        })
        .collect();
    let mut broken: Vec<String> = numbers
        .clone()
        .map(|number| (number, rows.iter().filter(|row| row.0 == number).count()))
        .filter(|(_, count)| *count != 1)
        .map(|(number, count)| format!("{number} is there {count} times"))
        .collect();
    broken.extend(
        rows.windows(2)
            .filter(|pair| pair[0].0 > pair[1].0)
            .map(|pair| format!("{} comes after {}", pair[1].0, pair[0].0)),
    );
    for (number, row) in rows {
        if !numbers.contains(&number) {
            broken.push(format!("{number} is no case"));
        }
        if links(row).is_empty() {
            broken.push(format!("{number} names nothing that shows it"));
        }
    }
    broken
}

/// Whether the file has a function of this name that is run as a test: one with an attribute that says
/// so, one in the braces of a macro, or one in the list that a macro makes tests of.
pub(crate) fn is_test(file: &File, name: &str, files: &[File]) -> bool {
    let lines: Vec<&str> = file.text.lines().collect();
    let begins = format!("fn {name}(");
    let is_it = |line: &&str| {
        let words = line.trim_start().trim_start_matches("pub(crate) ");
        let words = words
            .trim_start_matches("pub ")
            .trim_start_matches("async ");
        words.starts_with(&begins)
    };
    lines.iter().position(is_it).is_some_and(|at| {
        has_test_attribute(&lines[..at]) || is_in_a_macro(&lines[..at]) || is_listed(name, files)
    })
}

fn has_test_attribute(before: &[&str]) -> bool {
    let about = before.iter().rev().map(|line| line.trim_start());
    about
        .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

fn is_in_a_macro(before: &[&str]) -> bool {
    let opens = before.iter().rposition(|line| {
        !line.starts_with(' ') && line.ends_with("! {") && !line.starts_with("macro_rules!")
    });
    opens.is_some_and(|at| !before[at..].contains(&"}"))
}

fn is_listed(name: &str, files: &[File]) -> bool {
    let rust = files.iter().filter(|file| file.is("rs"));
    rust.flat_map(|file| file.text.lines()).any(|line| {
        let item = line.trim().trim_end_matches([',', ';']);
        item.strip_suffix(name)
            .is_some_and(|path| path.is_empty() || path.ends_with("::"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn each_number_has_one_row_that_names_something() {
        let row = |number: u32| format!("| {number} | what | then | [`it`](../a.rs) |\n");
        let rows = |numbers: &[u32]| {
            let text: String = numbers.iter().map(|&number| row(number)).collect();
            strange_rows(&file("docs/a.md", &text), 1..=3)
        };
        assert_eq!(rows(&[1, 2, 3]), Vec::<String>::new());
        assert_eq!(rows(&[1, 3]), ["2 is there 0 times"]);
        assert_eq!(rows(&[1, 2, 2, 3]), ["2 is there 2 times"]);
        assert_eq!(rows(&[1, 3, 2]), ["2 comes after 3"]);
        assert_eq!(rows(&[1, 2, 3, 4]), ["4 is no case"]);
        let bare = format!("{}{}| 3 | what | then | |\n", row(1), row(2));
        let broken = strange_rows(&file("docs/a.md", &bare), 1..=3);
        assert_eq!(broken, ["3 names nothing that shows it"]);
    }

    #[test]
    fn a_test_is_known_by_its_attribute_its_macro_or_its_list() {
        let tests = "#[tokio::test(flavor = \"multi_thread\")]\n// Why.\nasync fn plain() {}\n\
            fn helper() {}\n\
            on_both_servers! {\n    /// What.\n    async fn in_braces(db: Db) {}\n}\n\
            async fn listed(db: Db) {}\n\
            fn uncalled() {\n    helper();\n}\n";
        let list = "cases! {\n    module::listed;\n}\nfn f() { helper(); }\n";
        let files = [file("a/tests/t.rs", tests), file("a/src/list.rs", list)];
        let is_one = |name: &str| is_test(&files[0], name, &files);
        for test in ["plain", "in_braces", "listed"] {
            assert!(is_one(test), "{test}");
        }
        for other in ["helper", "uncalled", "f", "missing", "plai", "in_brace"] {
            assert!(!is_one(other), "{other}");
        }
    }
}
