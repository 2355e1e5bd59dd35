//! How long a hot tier with many frames on disk takes to open:
//! `cargo run --release -p kvasir-storage --example hot_start -- 100000`

use std::{io::Write, sync::Arc, time::Instant};

use kvasir_eviction::PolicyKind;
use kvasir_storage::hot::{HotSettings, HotTier, MonotonicClock, NoHotObserver};

/// Bytes of a frame: small, since none is read.
const FRAME_BYTES: u64 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for count in std::env::args().skip(1) {
        let frames: u64 = count.parse()?;
        let directory = std::env::temp_dir().join(format!("kvasir-hot-start-{}", std::process::id()));
        for number in 0..frames {
            let object = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let shard = directory.join("default").join(format!("{:02x}", object >> 56));
            if number < 4_096 {
                std::fs::create_dir_all(&shard)?;
            }
            let name = format!("{object:016x}{number:016x}-00000000-{FRAME_BYTES:08x}-00");
            std::fs::write(shard.join(name), [0; FRAME_BYTES as usize + 4])?;
        }
        let settings = HotSettings {
            ram_bytes: 0,
            disk_bytes: frames * FRAME_BYTES,
            directory: directory.clone(),
            policy: PolicyKind::DEFAULT,
            tenant_share_max: 1.0,
            read_ahead_chunks: 0,
            keys: None,
        };
        let start = Instant::now();
        let tier = HotTier::open(settings, Arc::new(MonotonicClock), Arc::new(NoHotObserver))?;
        let elapsed = start.elapsed();
        writeln!(out, "{} frames open in {:.3} s", tier.usage().disk_frames, elapsed.as_secs_f64())?;
        drop(tier);
        std::fs::remove_dir_all(directory)?;
    }
    Ok(())
}
