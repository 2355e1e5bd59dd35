//! Folders and files on the replica's disk that no other user of the machine may read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Permission bits of other users.
const OTHERS: u32 = 0o077;

/// Creates a folder of mode 0700, or removes other users' permissions from an existing one. A mounted volume
/// may belong to another user: then the modes of the files inside provide the protection.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    if fs::metadata(path)?.permissions().mode() & OTHERS == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(0o700)) {
        Ok(()) => tracing::info!(?path, "removed other users' access to this folder"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(
                ?path,
                "other users of this machine can list this folder, and this process may not change that: chmod it to 0700"
            );
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A new file of mode 0600.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("is there").permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_private_and_what_was_open_is_closed() {
        let root = tempfile::tempdir().expect("a folder");
        let (new, open) = (root.path().join("a/new"), root.path().join("open"));
        private_directory(&new).expect("makes");
        fs::create_dir(&open).expect("makes");
        fs::set_permissions(&open, Permissions::from_mode(0o755)).expect("changes");
        private_directory(&open).expect("takes");
        private_file(&open.join("file")).expect("makes");
        assert_eq!((mode(&new), mode(&open), mode(&open.join("file"))), (0o700, 0o700, 0o600));
    }
}
