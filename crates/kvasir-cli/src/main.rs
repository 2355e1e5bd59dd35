//! The kvasir command line.
fn main() {}
