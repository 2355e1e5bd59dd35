//! Sealed objects, records and frames that somebody else changed: they are what was sealed, or nothing.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_storage::fuzzing::sealed(data));
