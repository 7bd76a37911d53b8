//! The files of the repository.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A text file.
pub struct File {
    /// Its path, from the root of the repository.
    pub path: String,
    /// What is in it.
    pub text: String,
}

impl File {
    /// Whether the name of the file ends in `.extension`.
    pub fn is(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|it| it == extension)
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    // At run time: in a build folder that checkouts share, another one may have built this.
    let folder = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let mut folders = Path::new(&folder).ancestors();
    let root = folders.find(|folder| folder.join("Cargo.lock").exists());
    root.expect("the root has a lock file").to_owned()
}

/// The text files that are, or would be, under version control.
pub fn all() -> Vec<File> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .expect("git");
    assert!(
        output.status.success(),
        "git: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let files: Vec<File> = String::from_utf8(output.stdout)
        .expect("paths in UTF-8")
        .split_terminator('\0')
        // What cannot be read is deleted and not yet committed, or no text.
        .filter_map(|path| {
            let text = fs::read_to_string(root().join(path)).ok()?;
            Some(File {
                path: path.to_owned(),
                text,
            })
        })
        .collect();
    assert!(
        files.iter().any(|file| file.path == "Cargo.toml"),
        "git lists no files"
    );
    files
}
