//! What cargo says of the workspace.

use std::{collections::BTreeSet, env, process::Command};

use serde_json::Value;

use crate::files;

/// A crate of the workspace, as its manifest has it.
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, from the root of the workspace.
    pub folder: String,
    /// What it asks for, whatever the features.
    pub dependencies: Vec<Dependency>,
}

/// One line under `[dependencies]`, `[build-dependencies]` or `[dev-dependencies]`.
pub struct Dependency {
    /// The name of the crate.
    pub name: String,
    /// Under `[dev-dependencies]`.
    pub dev: bool,
    /// With a version beside the path, as a published crate needs it.
    pub versioned: bool,
}

impl Package {
    /// Made to be used by others, in contrast to tests, examples and measurements.
    pub fn is_product(&self) -> bool {
        !self.folder.starts_with("tests/")
            && !self.folder.starts_with("examples/")
            && self.name != "outbox-bench"
    }
}

/// The crates of the workspace.
pub fn members() -> Vec<Package> {
    let metadata = run(&["metadata", "--format-version", "1", "--no-deps"]).expect("metadata");
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let root = metadata["workspace_root"].as_str().expect("a root");
    array(&metadata["packages"])
        .map(|package| Package {
            name: string(&package["name"]),
            folder: string(&package["manifest_path"])
                .trim_start_matches(root)
                .trim_start_matches('/')
                .trim_end_matches("/Cargo.toml")
                .to_owned(),
            dependencies: array(&package["dependencies"])
                .map(|dependency| Dependency {
                    name: string(&dependency["name"]),
                    dev: dependency["kind"] == "dev",
                    versioned: dependency["req"] != "*",
                })
                .collect(),
        })
        .collect()
}

/// The names of the crates that are built for `package` with all its features, itself among them.
pub fn built_for(package: &str) -> BTreeSet<String> {
    let edges = ["--all-features", "--edges", "normal,build"];
    tree(&[&["--package", package], &edges[..]].concat()).expect("a crate of the workspace")
}

/// The same without any of its features.
pub fn built_at_least_for(package: &str) -> BTreeSet<String> {
    let edges = ["--no-default-features", "--edges", "normal,build"];
    tree(&[&["--package", package], &edges[..]].concat()).expect("a crate of the workspace")
}

/// The names of the crates that are built for anything here, the tests too.
pub fn built() -> BTreeSet<String> {
    tree(&["--workspace", "--all-features", "--edges", "all"]).expect("the workspace")
}

/// The names of the crates that depend on `name` themselves; none where nothing here needs it.
pub fn dependents_of(name: &str) -> BTreeSet<String> {
    match tree(&[
        "--workspace",
        "--all-features",
        "--edges",
        "all",
        "--depth",
        "1",
        "--invert",
        name,
    ]) {
        Ok(mut names) => {
            names.remove(name);
            names
        }
        Err(message) if message.contains("did not match any packages") => BTreeSet::new(),
        Err(message) => panic!("{message}"),
    }
}

fn tree(arguments: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut all = vec!["tree", "--locked", "--prefix", "none", "--format", "{p}"];
    all.extend(arguments);
    let lines = run(&all)?;
    Ok(lines
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect())
}

/// What cargo printed, or what it complained of.
fn run(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(env::var("CARGO").expect("set by cargo"))
        .args(arguments)
        .current_dir(files::root())
        .output()
        .expect("cargo");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("UTF-8"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("an array").iter()
}

fn string(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}
