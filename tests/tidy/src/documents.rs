//! What the documents show and where they lead: blocks of code that are checked somewhere, and links to what
//! is there.
//!
//! The line that opens a block says how what is in it is checked:
//!
//! | line | checked by |
//! | --- | --- |
//! | `` ```LANGUAGE file=PATH `` | word for word, but for indentation: it is in that file, also as an example in a doc comment |
//! | `` ```LANGUAGE test=PATH `` | a test in that file, which reads this document |
//! | `` ```sh `` | the crates, scripts and programs that it calls are there; what it asks of the program `outbox` is tried in `outbox-relay/src/cli.rs` |
//! | `` ```toml `` with `[dependencies]` | the versions and features are those of this workspace |
//! | `` ```text ``, `` ```mermaid `` | nothing: it is no code |
//!
//! Pure; like the rules it reads lines, not syntax.

use crate::evidence::is_test;
use crate::files::File;

/// Programs that a block may call beside ours: those of any system, and the servers' own.
const OTHER_PROGRAMS: [&str; 26] = [
    "[",
    "cat",
    "cd",
    "cp",
    "curl",
    "echo",
    "eval",
    "export",
    "for",
    "grep",
    "head",
    "install",
    "kill",
    "mkdir",
    "node",
    "psql",
    "python3",
    "redis-cli",
    "rm",
    "sed",
    "sleep",
    "source",
    "tail",
    "true",
    "until",
    "wait",
];

/// A fenced block of a document.
struct Block<'a> {
    /// Its first line, from 0, which opens it.
    at: usize,
    /// What is behind the fence in that line.
    info: &'a str,
    lines: Vec<&'a str>,
}

impl<'a> Block<'a> {
    fn language(&self) -> &'a str {
        self.info.split([' ', ',']).next().unwrap_or_default()
    }

    /// The value of `name=…` in the line that opens it.
    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.info
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

fn blocks(document: &File) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = document.text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let block = lines.by_ref().map(|(_, line)| line);
        let lines = block
            .take_while(|line| !line.trim_start().starts_with("```"))
            .collect();
        blocks.push(Block { at, info, lines });
    }
    blocks
}

/// Blocks that nothing checks, and those that are not what they say that they are. `crates` are the names of
/// the workspace's.
pub fn strange_blocks(document: &File, files: &[File], crates: &[String]) -> Vec<String> {
    if !document.is("md") {
        return Vec::new();
    }
    let mut broken = Vec::new();
    for block in blocks(document) {
        let complaints = match (block.attribute("file"), block.attribute("test")) {
            (Some(path), _) => not_in_its_file(&block, path, files),
            (_, Some(path)) => not_read_by_its_test(document, path, files),
            _ => match block.language() {
                "text" | "mermaid" => Vec::new(),
                "sh" => strange_commands(document, &block, files, crates),
                "toml" if block.lines.contains(&"[dependencies]") => {
                    strange_dependencies(&block, files)
                }
                _ => vec![
                    "nothing checks it: it wants file=PATH or test=PATH, or is text".to_owned(),
                ],
            },
        };
        let place = format!("{}:{}: ```{}", document.path, block.at + 1, block.info);
        broken.extend(
            complaints
                .iter()
                .map(|complaint| format!("{place}: {complaint}")),
        );
    }
    broken
}

fn not_in_its_file(block: &Block<'_>, path: &str, files: &[File]) -> Vec<String> {
    match files.iter().find(|file| file.path == path) {
        None => vec![format!("there is no {path}")],
        Some(file) if !bare(&file.text).contains(&bare(&block.lines.join("\n"))) => {
            vec![format!("{path} has something else")]
        }
        Some(_) => Vec::new(),
    }
}

/// The lines without what stands before and behind them, each between two line breaks. Before them may be
/// the slashes of a doc comment, whose examples are compiled as well.
fn bare(text: &str) -> String {
    let bare = |line: &str| {
        let line = line.trim();
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"));
        comment.unwrap_or(line).trim_start().to_owned()
    };
    let lines: Vec<String> = text.lines().map(bare).collect();
    format!("\n{}\n", lines.join("\n"))
}

fn not_read_by_its_test(document: &File, path: &str, files: &[File]) -> Vec<String> {
    let is_test = path.ends_with(".rs") && path.contains("tests/");
    match files.iter().find(|file| file.path == path && is_test) {
        None => vec![format!("there is no test {path}")],
        Some(test) if !test.text.contains(&format!("\"{}\"", document.path)) => {
            vec![format!("{path} does not name {}", document.path)]
        }
        Some(_) => Vec::new(),
    }
}

/// Calls of crates and scripts that are not there, and of programs that nobody knows.
fn strange_commands(
    document: &File,
    block: &Block<'_>,
    files: &[File],
    crates: &[String],
) -> Vec<String> {
    // Functions of the shell: what they do is in lines of their own.
    let begins = |line: &str| line.strip_suffix("() {").map(str::to_owned);
    let functions: Vec<String> = document.text.lines().filter_map(begins).collect();
    let mut strange = Vec::new();
    for words in commands(&block.lines) {
        let after = |flag: &str| {
            let at = words.iter().position(|word| word == flag)?;
            words.get(at + 1).map(String::as_str)
        };
        let program = words[0].as_str();
        let is_there = match program {
            "outbox" | "}" => true,
            _ if functions
                .iter()
                .any(|it| it == program.trim_end_matches("()")) =>
            {
                true
            }
            "cargo" => {
                let known = |name: &str| crates.iter().any(|it| it == name);
                after("-p").is_none_or(known)
                    && after("--path").is_none_or(|path| {
                        files
                            .iter()
                            .any(|file| file.path == format!("{path}/Cargo.toml"))
                    })
            }
            _ if program.contains('/') => files.iter().any(|file| file.path == program),
            _ => OTHER_PROGRAMS.contains(&program),
        };
        if !is_there {
            strange.push(format!("`{}` calls what is not there", words.join(" ")));
        }
    }
    strange
}

/// The commands of lines for a shell, in words: without comments, assignments and documents in place.
fn commands(lines: &[&str]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let mut whole = (*line).to_owned();
        while let Some(begun) = whole.strip_suffix('\\') {
            whole = format!("{begun} {}", lines.next().copied().unwrap_or_default());
        }
        if let Some((_, end)) = whole.split_once("<<") {
            let end: String = end.chars().filter(|it| it.is_alphanumeric()).collect();
            lines.by_ref().find(|line| **line == end);
        }
        let mut command = Vec::new();
        let mut words = words(&whole).into_iter();
        while let Some(word) = words.next() {
            if [">", ">>", "<"].contains(&word.trim_start_matches('2')) {
                words.next();
            } else if ["&&", "||", "|", ";", "&", "do", "done"].contains(&word.as_str()) {
                commands.push(std::mem::take(&mut command));
            } else if !(command.is_empty() && is_assignment(&word)) {
                command.push(word);
            } else if let Some((_, called)) = word.split_once("=$(") {
                command.push(called.to_owned());
            }
        }
        commands.push(command);
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// How a document shows a command of a program.
pub struct Shown {
    /// Where: path and line.
    pub place: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// As one would type it, in a block; otherwise in a sentence, where arguments may be missing or stand for
    /// others.
    pub whole: bool,
}

/// Every command of `program` in the document: in blocks for a shell, behind `$` in what is printed, and between
/// backticks in sentences.
pub fn shown(document: &File, program: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut show = |at: usize, words: Vec<String>, whole: bool| {
        if words.len() > 1 && words[0] == program {
            let place = format!("{}:{}", document.path, at + 1);
            shown.push(Shown {
                place,
                words,
                whole,
            });
        }
    };
    let blocks = blocks(document);
    for block in &blocks {
        let printed = block
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("$ "));
        let lines: Vec<&str> = match block.language() {
            "sh" => block.lines.clone(),
            _ => printed.collect(),
        };
        for words in commands(&lines) {
            show(block.at, words, true);
        }
    }
    let in_a_block = |at: usize| {
        blocks
            .iter()
            .any(|block| (block.at..=block.at + block.lines.len() + 1).contains(&at))
    };
    for (at, line) in document.text.lines().enumerate() {
        if !in_a_block(at) {
            for span in line.split('`').skip(1).step_by(2) {
                let words = words(&span.replace(['[', ']'], ""));
                show(at, words, false);
            }
        }
    }
    shown
}

/// The words of a line, without their quotes, up to a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, ';') => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || it == '_')
    })
}

/// Crates that the workspace does not know in this version, or whose features `outbox` has not.
fn strange_dependencies(block: &Block<'_>, files: &[File]) -> Vec<String> {
    let text = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map_or("", |file| file.text.as_str())
    };
    let mut strange = Vec::new();
    for line in block.lines.iter().skip(1) {
        let Some((name, asked)) = line.split_once(" = ") else {
            continue;
        };
        let ours = text("Cargo.toml")
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        let is_there = match (ours, version(asked)) {
            (Some(ours), Some(asked)) => version(ours)
                .is_some_and(|ours| ours == asked || ours.starts_with(&format!("{asked}."))),
            (Some(_), None) => {
                let features = asked.split_once("features = [").map_or("", |(_, it)| it);
                let manifest = text(&format!("{name}/Cargo.toml"));
                let mut features = features.split('"').skip(1).step_by(2);
                !manifest.is_empty() && features.all(|it| manifest.contains(&format!("\n{it} = [")))
            }
            (None, _) => false,
        };
        if !is_there {
            strange.push(format!("`{line}` is not what the workspace has"));
        }
    }
    strange
}

/// The version in what is behind the name of a dependency.
fn version(dependency: &str) -> Option<&str> {
    let behind = match dependency.strip_prefix('"') {
        Some(behind) => behind,
        None => dependency.split_once("version = \"")?.1,
    };
    behind.split('"').next()
}

/// Links whose file, folder or heading is not there, and names of tests in backticks that the file has not.
pub fn strange_links(document: &File, files: &[File]) -> Vec<String> {
    if !document.is("md") {
        return Vec::new();
    }
    let mut broken = Vec::new();
    for (at, line) in document.text.lines().enumerate() {
        for (text, target) in links(line) {
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = resolved(&document.path, path);
            let folder = format!("{path}/");
            let test = text.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            let mut files_and_itself = files.iter().chain([document]);
            let complaint = match files_and_itself.find(|file| file.path == path) {
                None if files.iter().any(|file| file.path.starts_with(&folder)) => continue,
                None => format!("there is no {path}"),
                Some(file) if file.is("rs") => match test {
                    Some(test) if test.contains('_') && !is_test(file, test, files) => {
                        format!("{path} has no test {test}")
                    }
                    _ => continue,
                },
                Some(file) if heading.is_empty() || has_heading(file, heading) => continue,
                Some(_) => format!("{path} has no heading {heading}"),
            };
            broken.push(format!("{}:{}: {complaint}", document.path, at + 1));
        }
    }
    broken
}

/// Text and target of each inline link.
pub fn links(line: &str) -> Vec<(&str, &str)> {
    let mut links = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, behind)) = after.split_once(')') else {
            break;
        };
        if let Some((_, text)) = before.rsplit_once('[') {
            links.push((text, target));
        }
        rest = behind;
    }
    links
}

/// The path from the root of what a document calls `target`; the document itself where that is empty.
pub fn resolved(document: &str, target: &str) -> String {
    if target.is_empty() {
        return document.to_owned();
    }
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a heading has this name in links: in lower case, without punctuation, with hyphens for spaces.
fn has_heading(file: &File, name: &str) -> bool {
    let anchor = |heading: &str| -> String {
        let kept = heading.trim().chars().filter_map(|it| match it {
            ' ' => Some('-'),
            '-' | '_' => Some(it),
            _ if it.is_alphanumeric() => Some(it),
            _ => None,
        });
        kept.flat_map(char::to_lowercase).collect()
    };
    let mut headings = file.text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == name)
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

    fn broken(path: &str, text: &str, files: &[File]) -> usize {
        let crates = ["shop".to_owned()];
        strange_blocks(&file(path, text), files, &crates).len()
    }

    #[test]
    fn code_of_a_document_is_found_in_its_file() {
        let source =
            "fn f() {\n    g();\n\n    h();\n}\n/// ```\n/// i();\n///\n/// j();\n/// ```\n";
        let files = [file("a/src/b.rs", source)];
        for good in [
            "```rust file=a/src/b.rs\ng();\n\nh();\n```\n",
            "```rust file=a/src/b.rs\nfn f() {\n    g();\n```\ntext\n```text\nls\n```\n",
            "```rust file=a/src/b.rs\ni();\n\nj();\n```\n",
            "1. first\n   ```rust file=a/src/b.rs\n   g();\n   ```\n",
            "no code",
        ] {
            assert_eq!(broken("docs/a.md", good, &files), 0, "{good}");
        }
        for bad in [
            "```rust file=a/src/b.rs\nh();\ng();\n```\n",
            "```rust file=a/src/b.rs\ng()\n```\n",
            "```rust file=a/src/c.rs\ng();\n```\n",
            "```rust\ng();\n```\n",
            "```python\ng()\n```\n",
            "```\nwhat is this\n```\n",
            "1. first\n   ```rust\n   g();\n   ```\n",
        ] {
            assert_eq!(broken("docs/a.md", bad, &files), 1, "{bad}");
            assert_eq!(broken("a/src/b.rs", bad, &files), 0, "{bad}");
        }
    }

    #[test]
    fn a_test_that_runs_a_block_names_its_document() {
        let files = [
            file("a/tests/b.rs", "read(\"docs/a.md\")"),
            file("a/src/b.rs", "read(\"docs/a.md\")"),
        ];
        let at = |document: &str, test: &str| {
            broken(
                document,
                &format!("```sql test={test}\nSELECT 1;\n```\n"),
                &files,
            )
        };
        assert_eq!(at("docs/a.md", "a/tests/b.rs"), 0);
        assert_eq!(at("docs/b.md", "a/tests/b.rs"), 1);
        assert_eq!(at("docs/a.md", "a/tests/c.rs"), 1);
        assert_eq!(at("docs/a.md", "a/src/b.rs"), 1);
    }

    #[test]
    fn a_shell_calls_what_is_there() {
        let files = [file("scripts/up", ""), file("shop/Cargo.toml", "")];
        for good in [
            "cargo run -p shop && scripts/up   # both",
            "# nothing\nA=1 B='2 3' outbox run --set a.b=c",
            "cat > a.toml <<'END'\nnot-a-command\nEND\ncargo install --path shop",
            "curl -d '{\"a\"; b}' \\\n  http://127.0.0.1 | grep a",
            "twice() {\n    scripts/up\n}\na=$(cat b | tail -n 1)\ntwice",
        ] {
            let text = format!("```sh\n{good}\n```\n");
            assert_eq!(broken("docs/a.md", &text, &files), 0, "{good}");
        }
        for bad in [
            "cargo run -p stall",
            "scripts/up; scripts/down",
            "a=$(frobnicate b)",
            "frobnicate",
            "cargo install --path stall",
            "cat <<END\nfrobnicate\nEND\nfrobnicate",
        ] {
            let text = format!("```sh\n{bad}\n```\n");
            assert_eq!(broken("docs/a.md", &text, &files), 1, "{bad}");
        }
    }

    #[test]
    fn commands_are_found_wherever_they_are_shown() {
        let text = "Say `outbox status [--json]` or `ls`.\n```sh\ncd a && outbox run 2>> log & # on\n```\n\
            ```text\n$ outbox keys\noutbox is not typed here\n```\n";
        let shown = shown(&file("docs/a.md", text), "outbox");
        let found: Vec<(&str, String, bool)> = shown
            .iter()
            .map(|it| (it.place.as_str(), it.words.join(" "), it.whole))
            .collect();
        assert_eq!(
            found,
            [
                ("docs/a.md:2", "outbox run".to_owned(), true),
                ("docs/a.md:5", "outbox keys".to_owned(), true),
                ("docs/a.md:1", "outbox status --json".to_owned(), false),
            ]
        );
    }

    #[test]
    fn dependencies_are_those_of_the_workspace() {
        let files = [
            file(
                "Cargo.toml",
                "axum = { version = \"0.8.9\" }\nlog = \"1.2\"\nshop = { path = \"shop\" }\n",
            ),
            file("shop/Cargo.toml", "[features]\ntea = []\n"),
        ];
        let at = |line: &str| {
            broken(
                "docs/a.md",
                &format!("```toml\n[dependencies]\n{line}\n```\n"),
                &files,
            )
        };
        for good in [
            "axum = \"0.8\"",
            "log = \"1\"",
            "shop = { path = \"../shop\", features = [\"tea\"] }",
        ] {
            assert_eq!(at(good), 0, "{good}");
        }
        for bad in [
            "axum = \"0.7\"",
            "axum = \"0.80\"",
            "gone = \"1\"",
            "shop = { path = \"../shop\", features = [\"tea\", \"milk\"] }",
        ] {
            assert_eq!(at(bad), 1, "{bad}");
        }
    }

    #[test]
    fn a_link_leads_to_what_is_there() {
        let files = [
            file("b.md", "# One\n## Two: `three` – four\n"),
            file("deploy/unit", ""),
            file(
                "a/tests/t.rs",
                "#[test]\nfn it_holds() {}\nfn it_helps() {}\n",
            ),
        ];
        let broken = |text: &str| strange_links(&file("docs/a.md", text), &files);
        let good = "[b](../b.md) [two](../b.md#two-three--four) [d](../deploy) [far](https://a.b/x.rs)\n\
            [`it_holds`](../a/tests/t.rs) [here](#part)\n# Part\n";
        assert_eq!(broken(good), Vec::<String>::new());
        let bad =
            "[`gone`](../gone.rs)\n[c](c.md)\n[two](../b.md#two)\n[`it_helps`](../a/tests/t.rs)\n";
        assert_eq!(
            broken(bad),
            [
                "docs/a.md:1: there is no gone.rs",
                "docs/a.md:2: there is no docs/c.md",
                "docs/a.md:3: b.md has no heading two",
                "docs/a.md:4: a/tests/t.rs has no test it_helps",
            ]
        );
        assert_eq!(
            strange_links(&file("c.md", "[b](b.md#one)"), &files).len(),
            0
        );
    }
}
