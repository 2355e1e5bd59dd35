//! A batch of the journal or of the log of removals, with the checksum made to fit.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kvasir_storage::fuzzing::journal(data));
