//! The `kvasir` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kvasir_cli::main()
}
