//! Sequences of requests to the S3 front.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_server::fuzzing::s3_requests(data));
