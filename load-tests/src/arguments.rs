//! Flags that the measurements share.

use std::path::PathBuf;

use clap::Args;

/// Arguments common to scenarios, peers and links.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArguments {
    /// The `kvasir` binary.
    #[arg(long, default_value = "target/release/kvasir")]
    pub(crate) kvasir: PathBuf,
    /// Further settings of the service, as `section.key=value`.
    #[arg(long = "set", value_name = "SETTING")]
    pub(crate) settings: Vec<String>,
    /// Trace file of a replay, as NAME=FILE (JSON lines, plain or compressed by zstd). Default: a synthetic trace.
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = named_file)]
    pub(crate) traces: Vec<(String, PathBuf)>,
    /// Folder for results: NAME.json and NAME.html.
    #[arg(long, default_value = "target/load")]
    pub(crate) out: PathBuf,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("a trace must have the form NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}
