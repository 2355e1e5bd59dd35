//! Output of commands: results on stdout, as text or as one JSON document, and KV dumps.

use std::{
    io::{self, Write as _},
    path::Path,
};

use kvasir_codec::KvSource;
use kvasir_dump::DumpDtype;
use kvasir_types::ModelSpec;
use serde::Serialize;

use crate::error::{CliError, CliResult, Exit, check_replaceable};

/// Writes a KV dump with elements in the type of the model's cache.
pub fn write_dump(path: &Path, spec: &ModelSpec, tokens: &[u32], kv: &dyn KvSource) -> CliResult {
    check_replaceable(path)?;
    kvasir_dump::write_dump(path, spec, tokens, kv, DumpDtype::of(spec.kv_dtype)).map_err(|error| {
        let message = format!("{}: {error}", path.display());
        CliError::new(Exit::NoOutput, message, "Check that the folder is writable.")
    })
}

/// Prints text and a newline. A reader that closed the pipe (`| head`) is no error.
pub fn print(text: &str) -> CliResult {
    print_if_read(text).map(drop)
}

/// Like [`print()`]. Returns false if the reader closed the pipe: a command without an end then stops.
pub fn print_if_read(text: &str) -> CliResult<bool> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CliError::new(
            Exit::NoOutput,
            format!("cannot write to standard output: {error}"),
            "Check where the output goes: the disk may be full.",
        )),
    }
}

/// Prints a value as one JSON document.
pub fn print_json(value: &impl Serialize) -> CliResult {
    print(&serde_json::to_string_pretty(value).map_err(CliError::internal)?)
}

/// Aligns columns with spaces: the first to the left, the others to the right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a number of bytes for people, in decimal units.
pub fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let rows = [["a", "1"], ["bcd", "23"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "a     1\nbcd  23");
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(
            [0, 9_999, 10_000, 3_670_016, 12_000_000].map(bytes),
            ["0 B", "9999 B", "10.0 kB", "3670.0 kB", "12.0 MB"]
        );
    }
}
