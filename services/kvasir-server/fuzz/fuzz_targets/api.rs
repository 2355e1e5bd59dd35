//! Sequences of requests to the API.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_server::fuzzing::api_requests(data));
