//! A web token, and a file of the keys that tokens are signed with.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_server::fuzzing::web_token(data));
