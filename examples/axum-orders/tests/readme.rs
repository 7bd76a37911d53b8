//! The README shows the program of this crate, which is compiled and run; this keeps the two the same.

use std::{env, fs, path::Path};

#[test]
fn the_readme_shows_this_program() {
    // At run time: in a build folder that checkouts share, another one may have built this.
    let crate_folder = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let read = |path| {
        fs::read_to_string(Path::new(&crate_folder).join(path)).expect("a file of this repository")
    };
    let program = read("src/main.rs");
    let (_, code) = program
        .split_once("\n\n")
        .expect("code after the module's description");
    let shown = format!("```rust file=examples/axum-orders/src/main.rs\n{code}```\n");
    assert!(
        read("../../README.md").contains(&shown),
        "README.md shows another program than examples/axum-orders/src/main.rs"
    );
}
