//! Folders and files on the replica's disk that no other user of the machine may read.

use std::{
    fs::{self, DirBuilder, DirEntry, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Permission bits of other users.
const OTHERS: u32 = 0o077;

/// Creates a folder of mode 0700, or removes other users' permissions from an existing one. A mounted volume
/// may belong to another user: then the modes of the files inside provide the protection.
///
/// # Errors
/// If the folder cannot be made, or its mode not be read.
pub fn private_directory(path: &Path) -> io::Result<()> {
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
        Err(error) if is_refused(&error) => {
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

/// A new file of mode 0600 without a name. Its folder is created with mode 0700, and left as it is if it exists.
pub(crate) fn unnamed_private_file(folder: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let file = tempfile::tempfile_in(folder)?;
    match file.set_permissions(Permissions::from_mode(0o600)) {
        // Nobody else can open what has no name.
        Err(error) if !is_refused(&error) => Err(error),
        _ => Ok(file),
    }
}

/// Removes other users' permissions from everything in a private folder, which a library filled. What belongs to another
/// user than the folder, or is on a volume that refuses the change, stays as it is: the folder protects it.
pub(crate) fn close_contents(folder: &Path) -> io::Result<()> {
    let owner = fs::metadata(folder)?.uid();
    for entry in fs::read_dir(folder)? {
        match close(&entry?, owner) {
            Err(error) if is_refused(&error) => {}
            // The library may have deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            closed => closed?,
        }
    }
    Ok(())
}

fn close(entry: &DirEntry, owner: u32) -> io::Result<()> {
    // Of the entry itself if it is a link. Another owner could put a link in its place before the mode is set.
    let found = entry.metadata()?;
    if found.is_symlink() || found.uid() != owner {
        return Ok(());
    }
    let path = entry.path();
    if found.permissions().mode() & OTHERS != 0 {
        let mode = if found.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    if found.is_dir() { close_contents(&path) } else { Ok(()) }
}

/// Whether a volume does not let this process change a mode.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
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

    #[test]
    fn a_file_without_a_name_is_private_and_so_is_the_folder_made_for_it() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a/new");
        let file = unnamed_private_file(&folder).expect("makes");
        let of_file = file.metadata().expect("is open").permissions().mode() & 0o777;
        assert_eq!((of_file, mode(&folder), mode(&root.path().join("a"))), (0o600, 0o700, 0o700));
        // Perhaps one that others use as well.
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("changes");
        unnamed_private_file(&folder).expect("makes");
        assert_eq!(mode(&folder), 0o755);
    }

    #[test]
    fn what_a_library_left_open_is_closed_and_nothing_elsewhere() {
        let root = tempfile::tempdir().expect("a folder");
        let (inside, outside) = (root.path().join("inside"), root.path().join("outside"));
        fs::create_dir_all(inside.join("deep")).expect("makes");
        let left = [
            (inside.join("file"), 0o644),
            (inside.join("deep/file"), 0o666),
            (inside.join("closed"), 0o400),
            (outside.clone(), 0o644),
        ];
        for (path, mode) in &left {
            fs::write(path, b"").expect("writes");
            fs::set_permissions(path, Permissions::from_mode(*mode)).expect("changes");
        }
        fs::set_permissions(inside.join("deep"), Permissions::from_mode(0o755)).expect("changes");
        std::os::unix::fs::symlink(&outside, inside.join("link")).expect("links");
        close_contents(&inside).expect("closes");
        let closed = ["file", "deep", "deep/file", "closed"].map(|name| mode(&inside.join(name)));
        assert_eq!((closed, mode(&outside)), ([0o600, 0o700, 0o600, 0o400], 0o644));
    }

    #[test]
    fn what_belongs_to_another_user_stays_as_it_is() {
        let root = tempfile::tempdir().expect("a folder");
        let theirs = root.path().join("theirs");
        fs::write(&theirs, b"").expect("writes");
        fs::set_permissions(&theirs, Permissions::from_mode(0o644)).expect("changes");
        if std::os::unix::fs::chown(&theirs, Some(65_534), None).is_err() {
            println!("SKIPPED: this user may not give a file to another one");
            return;
        }
        close_contents(root.path()).expect("closes");
        assert_eq!(mode(&theirs), 0o644);
    }
}
