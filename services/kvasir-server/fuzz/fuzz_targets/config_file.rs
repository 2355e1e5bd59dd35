//! A configuration file.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| kvasir_server::fuzzing::config_file(text));
