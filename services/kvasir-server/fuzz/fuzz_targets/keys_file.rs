//! Keys of encryption at rest, as a file and as a list in a variable.
#![no_main]

use kvasir_server_fuzz as _;
use kvasir_store::seal::FileKeys;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for keys in [FileKeys::parse(text), FileKeys::parse_list(text)] {
        if let Ok(keys) = keys {
            assert!(!keys.tenants().is_empty(), "nobody is sealed, and nothing says so");
            assert!(keys.may_follow(&keys).is_ok());
        }
    }
});
