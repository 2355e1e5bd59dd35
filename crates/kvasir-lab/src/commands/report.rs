//! Reports as files.

use std::path::Path;

use kvasir_cli::error::{CliError, CliResult, Exit, write_file};
use serde::Serialize;

/// Creates a folder for results if it is missing.
pub(crate) fn create_folder(folder: &Path) -> CliResult {
    std::fs::create_dir_all(folder).map_err(|error| {
        let message = format!("cannot create {}: {error}", folder.display());
        CliError::new(Exit::NoOutput, message, "Check that its parent folder is writable.")
    })
}

/// Writes a report as `STEM.json` and in other forms, by file extension, into a folder that is created if
/// missing.
pub(crate) fn write_report(
    folder: &Path,
    stem: &str,
    report: &impl Serialize,
    others: &[(&str, String)],
) -> CliResult {
    create_folder(folder)?;
    let json = serde_json::to_vec_pretty(report).map_err(CliError::internal)?;
    write_file(&folder.join(format!("{stem}.json")), &json)?;
    (others.iter())
        .try_for_each(|(form, text)| write_file(&folder.join(format!("{stem}.{form}")), text.as_bytes()))
}
