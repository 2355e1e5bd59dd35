//! The `kvasir-lab` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kvasir_lab::main()
}
