//! Keys of encryption at rest, as a file and as a list in a variable.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| kvasir_server::fuzzing::keys_file(text));
