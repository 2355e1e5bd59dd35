//! Flags that the measurements of single operations share.

use std::path::PathBuf;

use clap::Args;

/// Arguments common to all measurements.
#[derive(Debug, Clone, Args)]
pub(crate) struct SpeedArguments {
    /// The `kvasir` binary.
    #[arg(long, default_value = "target/release/kvasir")]
    pub(crate) kvasir: PathBuf,
    /// The nginx binary.
    #[arg(long, default_value = "/usr/sbin/nginx")]
    pub(crate) nginx: PathBuf,
    /// An S3 store as s3://bucket/prefix, with AWS_* set; without it, this program's own S3 server.
    #[arg(long)]
    pub(crate) s3: Option<String>,
    /// Where the service keeps objects: file or s3.
    #[arg(long, default_value = "file")]
    pub(crate) store: String,
    /// Pairs of measurements.
    #[arg(long, default_value_t = 7)]
    pub(crate) pairs: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Further settings of the service, as `section.key=value`.
    #[arg(long = "set", value_name = "SETTING")]
    pub(crate) settings: Vec<String>,
}
