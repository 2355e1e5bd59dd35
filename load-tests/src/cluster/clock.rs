//! A wall clock that jumps while a process runs: a library loaded before libc adds the offset in a shared
//! file.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// The clock of one process.
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    offset: PathBuf,
    file: File,
}

impl Clock {
    /// Builds the library, and an offset of no seconds.
    pub(crate) fn new(directory: &Path, nth: usize) -> Result<Self> {
        let (source, library) = (directory.join("jump.c"), directory.join("jump.so"));
        if !library.exists() {
            std::fs::write(&source, include_str!("jump.c"))?;
            let mut command = Command::new("cc");
            command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
            let built =
                command.status().context("no C compiler (cc): install one to simulate clock jumps")?;
            ensure!(built.success(), "the clock's library does not build");
        }
        let offset = directory.join(format!("clock-{nth}"));
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&offset)?;
        file.write_all_at(&0i64.to_ne_bytes(), 0)?;
        Ok(Self { library, offset, file })
    }

    /// The environment variables for the process.
    pub(crate) fn env(&self) -> [(String, String); 2] {
        [
            ("LD_PRELOAD".into(), self.library.display().to_string()),
            ("JUMP_FILE".into(), self.offset.display().to_string()),
        ]
    }

    /// Offsets the clock by this many seconds from now on.
    pub(crate) fn jump(&self, seconds: i64) -> Result<()> {
        Ok(self.file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}
