//! A small separate disk that can be filled: a tmpfs, which needs root.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

/// Mounted until dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk of `mebibytes` at a folder; does nothing if that is 0.
    pub(crate) fn mount_if(mebibytes: u64, at: &Path) -> Result<Option<Self>> {
        if mebibytes == 0 {
            return Ok(None);
        }
        fs::create_dir_all(at)?;
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Some(Self(at.to_owned()))),
            Ok(output) => bail!("{}a small disk needs root", String::from_utf8_lossy(&output.stderr)),
            Err(error) => bail!("mount: {error}"),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Takes all room that is left.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut file = fs::File::create(self.ballast())?;
        let block = vec![1u8; 64 << 10];
        // Until the disk is full.
        while file.write_all(&block).is_ok() {}
        Ok(())
    }

    /// Frees the space again.
    pub(crate) fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.ballast())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a replica may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
