//! Text for a terminal and for programs: safe, aligned, and short. Pure.
//!
//! Keys, headers and errors come from applications and brokers. A control character in one of them could
//! move the cursor, hide a line or set the terminal's title, so nothing is printed that was not escaped.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use outbox_core::admin::Count;
use unicode_width::UnicodeWidthStr as _;

/// Whether a terminal may do something else with it than show it: control characters, C1 among them,
/// and what changes the direction of the text around it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text on one line that cannot disturb a terminal: what could is written as in Rust (`\n`,
/// `\u{1b}`), and so is the backslash, so that it can be told apart.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_unsafe(c) || c == '\\') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\\' | '\n' | '\r' | '\t' => safe.extend(c.escape_default()),
            c if is_unsafe(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// The lines of a text, each [`escaped`] but for its backslashes: for a payload, where a quoted `\"` is
/// easier to read as it is.
pub(crate) fn escaped_lines(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            c if is_unsafe(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

fn push_escape(text: &mut String, escape: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(escape);
}

/// The first characters of a text, so many at most, and the rest of it.
pub(crate) fn cut(text: &str, characters: usize) -> (&str, &str) {
    let end = text.char_indices().nth(characters);
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// At most `width` columns of the text, [`escaped`], with an ellipsis where something was cut off.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    // A text of a megabyte need not be escaped to show sixty columns of it.
    let (begin, rest) = cut(text, width + 1);
    let safe = escaped(begin);
    if rest.is_empty() && safe.width() <= width {
        return safe.into_owned();
    }
    let mut short = String::new();
    let mut columns = 1;
    for c in safe.chars() {
        columns += unicode_width::UnicodeWidthChar::width(c).unwrap_or_default();
        if columns > width {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

/// JSON in which characters that a terminal might obey are escaped. They are within its strings, so it is
/// the same JSON.
pub(crate) fn escaped_json(plain: &str) -> String {
    let mut safe = String::with_capacity(plain.len() + 1);
    for c in plain.chars() {
        if is_unsafe(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                push_escape(&mut safe, format_args!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A number with its thousands apart: `1,204,330`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `one`, or `many` with its number: `1 key`, `1,204 keys`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    counted_at_least(Count::Exact(number), one, many)
}

/// As [`counted`], of a number that may be a bound or an estimate: `10,000+ keys`, `~1,204 keys`.
pub(crate) fn counted_at_least(number: Count, one: &str, many: &str) -> String {
    match number {
        Count::Exact(1) => format!("1 {one}"),
        number => format!("{} {many}", approximate(number)),
    }
}

/// `1,204`, `10,000+` or `~1,204`.
pub(crate) fn approximate(number: Count) -> String {
    match number {
        Count::Exact(number) => count(number),
        Count::AtLeast(number) => format!("{}+", count(number)),
        Count::About(number) => format!("~{}", count(number)),
    }
}

/// A time span in its two largest units: `850 ms`, `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {smaller}"),
    };
    match seconds {
        0 if time.is_zero() => "0 s".to_owned(),
        0 => format!("{} ms", time.as_millis().max(1)),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds / 60 % 60, "min"),
        _ => two(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    }
}

/// How long before `now` that was; nothing for what lies in the future.
pub(crate) fn since(now: SystemTime, time: SystemTime) -> String {
    span(now.duration_since(time).unwrap_or_default())
}

/// Adds a line to a text.
pub(crate) fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// A word as a shell takes it, safe to show as it is: it must not be [`escaped`] as well, which would double
/// its backslashes and make it another word.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.chars().any(is_unsafe) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // What cannot be shown is written in octal digits, byte by byte: neither locale nor what follows matters.
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\\' | '\'' => quoted.extend(['\\', c]),
            c if is_unsafe(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    push_escape(&mut quoted, format_args!("\\{byte:03o}"));
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// A size: `312 B`, `1.5 KiB`, `4.0 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let scaled = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", scaled(1024)),
        _ => format!("{:.1} MiB", scaled(1_048_576)),
    }
}

/// A table in columns.
///
/// Every column is as wide as its widest cell. What is in the cells must have been escaped.
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The headings; one that begins with `>` is a column of numbers, which are aligned to the right. Without
    /// any words there is no heading.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let heading = columns.iter().map(|name| name.trim_start_matches('>'));
        let heading: Vec<String> = heading.map(str::to_owned).collect();
        let has_heading = heading.iter().any(|name| !name.is_empty());
        Self {
            right: columns.iter().map(|name| name.starts_with('>')).collect(),
            rows: has_heading.then_some(heading).into_iter().collect(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, each ended by a line break and without blanks at its end.
    pub(crate) fn render(&self) -> String {
        let mut widths = vec![0; self.right.len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[at].saturating_sub(cell.width()));
                let (before, after) = if self.right[at] {
                    (&*blanks, "")
                } else {
                    ("", &*blanks)
                };
                line.push_str(if at == 0 { "" } else { "  " });
                line.push_str(before);
                line.push_str(cell);
                line.push_str(after);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_passes() {
        let attack = "a\u{1b}]0;owned\u{7}\r\n\u{9b}2J\u{202e}b\\n\u{7f}";
        assert_eq!(
            escaped(attack),
            "a\\u{1b}]0;owned\\u{7}\\r\\n\\u{9b}2J\\u{202e}b\\\\n\\u{7f}"
        );
        assert_eq!(
            escaped_lines("{\n\t\"a\": \"\\\"\u{1b}\"}"),
            "{\n\t\"a\": \"\\\"\\u{1b}\"}"
        );
        let json = escaped_json(&serde_json::to_string(attack).unwrap());
        assert!(json.chars().all(|c| c == '\n' || !is_unsafe(c)), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), attack);
    }

    #[test]
    fn what_is_harmless_stays_as_it_is() {
        for text in ["", "order-7", "größe 東京 🦀", "a \"b\" 'c'"] {
            assert_eq!(escaped(text), text);
            assert_eq!(shortened(text, 20), text);
        }
    }

    #[test]
    fn a_word_is_quoted_as_a_shell_takes_it() {
        for (word, shown) in [
            ("orders.placed", "orders.placed"),
            ("", "''"),
            ("orders.*", "'orders.*'"),
            (r"a\b", r"'a\b'"),
            ("it's", r"'it'\''s'"),
            ("a\n1\\'\u{202e}", r"$'a\0121\\\'\342\200\256'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
        let words = ["größe 東京", "\u{1b}]0;a\u{7}7", "$'a'\\\n`b`"];
        for word in words {
            let script = format!("printf %s {}", quoted(word));
            let mut bash = std::process::Command::new("bash");
            let printed = bash.args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), word);
        }
    }

    #[test]
    fn a_text_is_cut_to_its_columns() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abcde…");
        assert_eq!(shortened("東京都庁", 5), "東京…");
        assert_eq!(shortened("ab\u{1b}\u{1b}", 6), "ab\\u{…");
        assert_eq!(shortened(&"x".repeat(1 << 20), 4), "xxx…");
    }

    #[test]
    fn numbers_and_spans_are_short() {
        assert_eq!(
            ["0", "999", "1,000", "1,204,330"],
            [0, 999, 1_000, 1_204_330].map(count)
        );
        assert_eq!(counted(1, "key", "keys"), "1 key");
        assert_eq!(counted(1_204, "key", "keys"), "1,204 keys");
        for (millis, text) in [
            (0, "0 s"),
            (850, "850 ms"),
            (12_999, "12 s"),
            (60_000, "1 min"),
            (185_000, "3 min 5 s"),
            (7_800_000, "2 h 10 min"),
            (356_400_000, "4 d 3 h"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
        assert_eq!(
            ["312 B", "1.5 KiB", "4.0 MiB"],
            [312, 1536, 4 << 20].map(size)
        );
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["topic", ">waiting", "why"]);
        table.row([
            "orders.placed".to_owned(),
            "1,204".to_owned(),
            "gone".to_owned(),
        ]);
        table.row(["東京".to_owned(), "7".to_owned(), String::new()]);
        assert_eq!(
            table.render(),
            "topic          waiting  why\n\
             orders.placed    1,204  gone\n\
             東京                 7\n"
        );
    }
}
