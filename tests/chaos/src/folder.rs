//! The folder of a run, which goes with it: the database's cluster and what the processes log.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::process;

const PREFIX: &str = "outbox-chaos-";

/// Removed when it is dropped.
pub(crate) struct Folder {
    path: PathBuf,
    disk: Option<PathBuf>,
}

impl Folder {
    /// Makes one for this process, and clears up after those that were killed before they could.
    pub(crate) fn make() -> Result<Self> {
        let parent = std::env::temp_dir();
        for entry in fs::read_dir(&parent)?.flatten() {
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|it| it.strip_prefix(PREFIX)?.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                drop(Self {
                    disk: Some(entry.path().join("disk")),
                    path: entry.path(),
                });
            }
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path, disk: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A disk of its own, so small that it can be filled; `None` where this process may not mount one.
    pub(crate) fn mount_disk(&mut self, mebibytes: u64) -> Result<Option<PathBuf>> {
        let disk = self.path.join("disk");
        fs::create_dir(&disk)?;
        let size = format!("size={mebibytes}m");
        let mounted = process::run(
            "mount",
            &["-t", "tmpfs", "-o", &size, "tmpfs", &text(&disk)],
        );
        if mounted.is_err() {
            return Ok(None);
        }
        self.disk = Some(disk.clone());
        Ok(Some(disk))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            // Lazily: a server that was just killed may still be on its way.
            let _ = process::run("umount", &["--lazy", &text(disk)]);
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
