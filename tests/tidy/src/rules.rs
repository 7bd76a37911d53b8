//! Rules that one file's text keeps or breaks.
//!
//! Each function returns the places that break its rule, as `path:line: text`. They read lines, not
//! syntax: enough to catch an oversight, and nobody here wants to deceive them.

use crate::files::File;

/// Marks of work left undone, and tests that are switched off.
pub fn unfinished(file: &File) -> Vec<String> {
    // Written so that this file keeps the rule.
    let everywhere = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let in_rust = [
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("db", "g!("),
        concat!("#[ign", "ore"),
    ];
    places(file, |line| {
        has_any(line, &everywhere) || file.is("rs") && has_any(line, &in_rust)
    })
}

/// Tests that wait for a time instead of for what they need.
///
/// A loop that polls must sleep somewhere; it says so with a comment `// wait: …` on the line or on
/// the one above. Under a paused clock a sleep costs nothing and is exact.
pub fn sleeps(file: &File) -> Vec<String> {
    let paused = file.path.starts_with("tests/simulation/") || file.text.contains("start_paused");
    if !file.is("rs") || paused {
        return Vec::new();
    }
    // In a source file the tests are at the end.
    let first = if format!("/{}", file.path).contains("/tests/") {
        0
    } else {
        file.text
            .lines()
            .position(|line| line.contains("#[cfg(test)]"))
            .unwrap_or(usize::MAX)
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let waits = |line: &str| line.contains(concat!("// wa", "it: "));
    lines
        .iter()
        .enumerate()
        .skip(first)
        .filter(|(_, line)| has_any(line, &[concat!("sle", "ep("), concat!("sle", "ep_until(")]))
        .filter(|(at, line)| !waits(line) && (*at == 0 || !waits(lines[at - 1])))
        .map(|(at, line)| place(file, at, line))
        .collect()
}

/// Paths that exist on one machine only.
pub fn machine_paths(file: &File) -> Vec<String> {
    let homes = [
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
    ];
    places(file, |line| has_any(line, &homes))
}

/// A statement without its reason: SQL that does not begin with a comment.
pub fn bare_statement(file: &File) -> Vec<String> {
    if !file.is("sql") || file.text.trim_start().starts_with("--") {
        return Vec::new();
    }
    vec![place(file, 0, file.text.lines().next().unwrap_or_default())]
}

/// A member's manifest that does not take from the workspace what all members share.
pub fn not_inherited(file: &File) -> Vec<String> {
    let section = |name: &str| {
        file.text
            .lines()
            .skip_while(|line| line.trim() != format!("[{name}]"))
            .skip(1)
            .take_while(|line| !line.starts_with('['))
            .map(|line| line.replace(' ', ""))
            .collect::<Vec<_>>()
    };
    let mut missing = Vec::new();
    for key in ["version", "edition", "rust-version", "license", "publish"] {
        if !section("package").contains(&format!("{key}.workspace=true")) {
            missing.push(format!(
                "{}: {key}.workspace = true under [package]",
                file.path
            ));
        }
    }
    if !section("lints").contains(&"workspace=true".to_owned()) {
        missing.push(format!("{}: workspace = true under [lints]", file.path));
    }
    missing
}

fn has_any(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn places(file: &File, broken: impl Fn(&str) -> bool) -> Vec<String> {
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| broken(line))
        .map(|(at, line)| place(file, at, line))
        .collect()
}

fn place(file: &File, at: usize, line: &str) -> String {
    format!("{}:{}: {}", file.path, at + 1, line.trim())
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
    fn unfinished_work_is_found_with_its_place() {
        let text = concat!(
            "fn f() {\n    to",
            "do!()\n}\n#[ign",
            "ore]\n// FIX",
            "ME\n"
        );
        let found = unfinished(&file("a/src/b.rs", text));
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], concat!("a/src/b.rs:2: to", "do!()"));
    }

    #[test]
    fn a_sleep_is_found_in_test_code_only() {
        let sleep = concat!("    tokio::time::sle", "ep(SECOND).await;\n");
        assert_eq!(sleeps(&file("tests/chaos/src/lib.rs", sleep)).len(), 1);
        assert_eq!(sleeps(&file("outbox-redis/tests/suite.rs", sleep)).len(), 1);
        assert_eq!(sleeps(&file("outbox-core/src/relay.rs", sleep)).len(), 0);
        let unit_test = format!("{sleep}#[cfg(test)]\nmod tests {{\n{sleep}}}\n");
        let found = sleeps(&file("outbox-core/src/relay.rs", &unit_test));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("outbox-core/src/relay.rs:4:"),
            "{found:?}"
        );
    }

    #[test]
    fn a_sleep_that_gives_its_reason_passes() {
        let beside = concat!(
            "sle",
            "ep(TICK).await; // wa",
            "it: the poll of a bounded loop\n"
        );
        let above = concat!(
            "// wa",
            "it: the poll of a bounded loop\nsle",
            "ep(TICK).await;\n"
        );
        for text in [beside, above] {
            assert_eq!(
                sleeps(&file("tests/chaos/src/lib.rs", text)),
                Vec::<String>::new()
            );
        }
    }

    #[test]
    fn a_sleep_under_a_paused_clock_passes() {
        let text = concat!(
            "#[tokio::test(start_paused = true)]\nsle",
            "ep(SECOND).await;\n"
        );
        assert_eq!(
            sleeps(&file("outbox-core/tests/relay.rs", text)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let text = concat!("cd /ho", "me/somebody\ncd /etc\n");
        assert_eq!(machine_paths(&file("docs/a.md", text)).len(), 1);
    }

    #[test]
    fn a_statement_needs_a_comment_first() {
        assert_eq!(bare_statement(&file("a.sql", "SELECT 1\n-- late")).len(), 1);
        assert_eq!(
            bare_statement(&file("a.sql", "\n-- Why.\nSELECT 1")).len(),
            0
        );
        assert_eq!(bare_statement(&file("a.rs", "fn f() {}")).len(), 0);
    }

    #[test]
    fn a_manifest_must_inherit_under_the_right_heading() {
        let good = "[package]\nversion.workspace = true\nedition.workspace = true\n\
            rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\
            \n[lints]\nworkspace = true\n";
        assert_eq!(
            not_inherited(&file("a/Cargo.toml", good)),
            Vec::<String>::new()
        );
        let own = good.replace("edition.workspace = true", "edition = \"2021\"");
        assert_eq!(not_inherited(&file("a/Cargo.toml", &own)).len(), 1);
        let elsewhere = good.replace("[lints]", "[other]");
        assert_eq!(not_inherited(&file("a/Cargo.toml", &elsewhere)).len(), 1);
    }
}
