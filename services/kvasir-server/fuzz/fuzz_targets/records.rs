//! Records of the bucket and rows of the index.
#![no_main]

use kvasir_server_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    kvasir_storage::fuzzing::records(data);
    kvasir_storage::fuzzing::index_row(data);
});
