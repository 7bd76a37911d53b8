//! One relay process for one outbox: a lock that vanishes with the process.
//!
//! The lock is the operating system's, on a small file of its own beside the database, which is
//! never removed. It cannot be on the database's own file: closing that file anywhere in a process ends
//! the locks by which SQLite protects it there. It cannot be a lock of SQLite either, since the only ones
//! that last are those of a transaction, and that would keep the application from writing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// Held for as long as it lives.
#[derive(Debug)]
pub(crate) struct RelayLock {
    _file: File,
}

impl RelayLock {
    /// Takes the lock, or says who has it. `database` has no symbolic links in it, so that each way to
    /// the same database leads to the same lock.
    pub(crate) fn take(database: &Path, prefix: &str) -> Result<Self, OpenError> {
        let path = beside(database, prefix);
        let failed = |source| OpenError::LockFile {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    database: database.to_owned(),
                    process: read_process(&mut file),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        write_process(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn beside(database: &Path, prefix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(format!("-{prefix}relay.lock"));
    path.into()
}

/// For people who want to know who has the lock. The lock itself does not depend on it.
fn write_process(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    write!(file, "{}", std::process::id())
}

/// `None` where it cannot be read, as on systems whose locks keep others from reading.
fn read_process(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.parse().ok()
}
