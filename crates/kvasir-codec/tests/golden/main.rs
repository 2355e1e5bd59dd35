//! Golden vectors: what this build writes is what the files say, and the files read as FORMAT.md §9 says.

mod objects;
mod pieces;

use std::{collections::BTreeMap, fs, path::PathBuf};

/// Relative path → content.
type Files = BTreeMap<String, Vec<u8>>;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn written_by_this_build() -> Files {
    let mut files = Files::new();
    pieces::write(&mut files);
    objects::write(&mut files);
    files
}

fn stored() -> Files {
    let mut files = Files::new();
    for verdict in ["ok", "err"] {
        for entry in fs::read_dir(folder().join(verdict)).expect("the folder is in the tree") {
            let path = entry.expect("readable").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            files.insert(format!("{verdict}/{name}"), fs::read(&path).expect("readable"));
        }
    }
    files
}

/// The first word of a debug text: an error's variant.
fn variant(error: &impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}

#[test]
fn files_are_byte_for_byte_what_this_build_writes() {
    let (expected, actual) = (stored(), written_by_this_build());
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&actual), "run `cargo run -p xtask -- golden` after a format change");
    for (name, content) in &expected {
        assert!(&actual[name] == content, "{name} differs: the format changed, or an encoder does");
    }
}

#[test]
fn files_read_as_they_say() {
    let files = stored();
    pieces::read(&files);
    objects::read(&files);
}

#[test]
#[ignore = "rewrites the golden files; `cargo run -p xtask -- golden` runs it"]
fn regenerate() {
    for (name, content) in written_by_this_build() {
        fs::write(folder().join(name), content).expect("writable");
    }
}
