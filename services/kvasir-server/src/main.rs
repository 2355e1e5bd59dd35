//! The Kvasir service.
fn main() {}
