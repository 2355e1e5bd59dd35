//! JSON bodies of requests: what is taken is written and read as the same.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_server::fuzzing::json_bodies(data));
