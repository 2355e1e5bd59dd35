//! A profile that loads is written back as it was.
#![no_main]

use kvasir_codec::Profile;
use kvasir_codec_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(profile) = Profile::from_bytes(data) {
        assert_eq!(profile.to_bytes(), data);
    }
});
