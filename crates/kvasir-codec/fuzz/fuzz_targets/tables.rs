//! A bank that loads is written back as it was, and every table of it sums to 4,096.
#![no_main]

use kvasir_codec::rans::TableBank;
use kvasir_codec_fuzz as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((bank, rest)) = TableBank::from_bytes(data) {
        assert_eq!(bank.to_bytes(), data[..data.len() - rest.len()]);
        for table in bank.stage_tables() {
            assert_eq!(table.frequencies().iter().map(|&f| u32::from(f)).sum::<u32>(), 4096);
        }
    }
});
