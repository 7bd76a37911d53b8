//! What a run leaves for a reader: the audit, what was survived, and a plot.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::audit::Audit;
use crate::plot::{Bar, Line, Plot};
use crate::record::Disturbance;

pub(crate) struct Report<'a> {
    /// The name of its folder.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The arguments of the program.
    pub(crate) command: String,
    /// Their versions.
    pub(crate) servers: &'a str,
    pub(crate) audit: &'a Audit,
    /// What went wrong that no fault was meant to do.
    pub(crate) troubles: &'a [String],
    pub(crate) disturbances: &'a [Disturbance],
    /// How many faults the schedule had.
    pub(crate) planned: usize,
    /// When a message committed, and when a copy arrived.
    pub(crate) committed: Vec<Duration>,
    pub(crate) delivered: Vec<Duration>,
}

impl Report<'_> {
    /// The servers, the audit, and how often each fault was there.
    pub(crate) fn summary(&self) -> String {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for disturbance in self.disturbances {
            *kinds.entry(disturbance.fault.kind()).or_default() += 1;
        }
        let kinds: Vec<_> = kinds
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        let mut summary = format!(
            "{}\n{}\nfaults: {} of {} planned ({})",
            self.servers,
            self.audit,
            self.disturbances.len(),
            self.planned,
            kinds.join(", ")
        );
        for trouble in self.troubles {
            summary.push_str("\ntrouble: ");
            summary.push_str(trouble);
        }
        summary
    }

    /// Writes `report.md` and `throughput.svg` into a folder of its name; the path of the former.
    pub(crate) fn write(&self, parent: &Path) -> Result<PathBuf> {
        let folder = parent.join(&self.name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("throughput.svg"), self.plot().svg())?;
        let mut text = format!(
            "# {}\n\n`chaos {}`\n\n```text\n{}\n```\n\n![throughput](throughput.svg)\n\n\
             | fault | from | until |\n| --- | ---: | ---: |\n",
            self.title,
            self.command,
            self.summary()
        );
        for Disturbance { fault, from, until } in self.disturbances {
            let (from, until) = (from.as_secs_f64(), until.as_secs_f64());
            text.push_str(&format!("| {fault} | {from:.1} s | {until:.1} s |\n"));
        }
        let path = folder.join("report.md");
        fs::write(&path, text)?;
        Ok(path)
    }

    fn plot(&self) -> Plot {
        let line = |name: &str, times: &[Duration]| Line {
            name: name.to_owned(),
            points: by_second(times),
        };
        let bars = self.disturbances.iter().map(|it| Bar {
            row: row(it.fault.kind()),
            label: it.fault.to_string(),
            from: it.from.as_secs_f64(),
            until: it.until.as_secs_f64(),
        });
        Plot {
            title: format!("Messages a second: {}", self.title),
            lines: vec![
                line("committed", &self.committed),
                line("arrived, with repeats", &self.delivered),
            ],
            bars: bars.collect(),
        }
    }
}

/// How many in each second.
fn by_second(times: &[Duration]) -> Vec<(f64, f64)> {
    let last = times.iter().max().map_or(0, Duration::as_secs) as usize;
    let mut counts = vec![0u32; last + 1];
    for time in times {
        counts[time.as_secs() as usize] += 1;
    }
    counts
        .iter()
        .enumerate()
        .map(|(second, count)| (second as f64, f64::from(*count)))
        .collect()
}

/// Where the plot shows a kind of fault.
fn row(kind: &str) -> &'static str {
    match kind.split(' ').next() {
        Some("relay" | "clock") => "relays",
        Some("postgres" | "sessions") => "postgres",
        _ if kind.contains("link") => "network",
        _ => "broker",
    }
}
