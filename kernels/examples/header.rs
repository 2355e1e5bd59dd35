//! Prints `cuda/format.cuh`.
#![allow(clippy::print_stdout, reason = "printing is what it does")]

fn main() {
    print!("{}", kvasir_kernels::format_header());
}
