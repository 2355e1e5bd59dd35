//! Frames that a replica has in memory when it ends, and finds on disk when it starts again.

use std::time::{Duration, Instant};

use super::{frame_record::MemoryFrame, tier::HotTier, tier_state::DiskWork};

impl HotTier {
    /// Writes the frames that are in memory alone to disk, those used last first, until `time_max` is over, and returns how many
    /// bytes that were. The disk's policy decides what may stay, as always. Frames of sealed tenants are left out: their key ends
    /// with the process. Blocks.
    pub fn write_back(&self, time_max: Duration) -> u64 {
        if self.settings.disk_bytes == 0 {
            return 0;
        }
        let begun = Instant::now();
        let mut frames: Vec<MemoryFrame> = {
            let state = self.state.lock();
            let only_here = state.ram.iter().filter(|(key, _)| !state.disk.contains_key(key));
            only_here.map(|(_, frame)| frame.clone()).collect()
        };
        frames.retain(|frame| !self.folder.seals(&frame.record.file.tenant));
        // The disk's policy takes them in the order of their uses, so that it keeps the latest; the latest are written first.
        frames.sort_by_key(|frame| (frame.record.access.now, frame.record.file.key));
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        for frame in &frames {
            self.admit_to_disk(&mut state, frame.record.clone(), &mut work);
        }
        frames.retain(|frame| state.disk.contains_key(&frame.record.file.key));
        drop(state);
        work.delete.iter().for_each(|file| self.folder.delete(file));
        let (mut bytes, mut is_failing) = (0, false);
        for MemoryFrame { bytes: content, record } in frames.into_iter().rev() {
            let in_time = begun.elapsed() < time_max && !is_failing;
            let written = in_time.then(|| self.folder.write(&record.file, &content));
            self.finish_write(&record.file, matches!(written, Some(Ok(()))));
            match written {
                Some(Ok(())) => bytes += content.len() as u64,
                Some(Err(error)) => {
                    is_failing = true;
                    tracing::warn!(%error, "the hot tier cannot write to its folder; check the disk of hot.directory");
                }
                None => {}
            }
        }
        bytes
    }
}
