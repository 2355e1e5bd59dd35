//! Names of objects in the bucket, whoever wrote them there, and of frames on the disk.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| kvasir_storage::fuzzing::keys(text));
