//! The folders of a directory store, and which of them are durable.
//!
//! A file survives a power failure once it, its folder and all folders above it are synced. Folders are synced last, when a
//! write changes them no more: each is then written once. The entry of a new folder is synced by every writer of a file in
//! it until one has succeeded, and not by its creator alone, who may be slower than the others or have ended.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{cache::BoundedMap, limits};

/// Distinguishes a folder from an earlier one at the same path, which this or another process has deleted: its inode's
/// number, which is used again, and when it was created.
type FolderId = (u64, SystemTime);

/// Creates a store's folder, durably, unless it is there.
///
/// # Errors
/// The file system's.
pub(crate) fn create_root(root: &Path) -> io::Result<()> {
    let missing = root.ancestors().take_while(|folder| !folder.exists()).count();
    fs::create_dir_all(root)?;
    root.ancestors().skip(1).take(missing).try_for_each(|folder| sync_folder(folder).map(drop))
}

/// Creates a file, and the folders above it if one is missing. None of this is durable yet.
///
/// # Errors
/// The file system's; `AlreadyExists` if the name is taken.
pub(crate) fn create_file(place: &Path) -> io::Result<File> {
    let create = || OpenOptions::new().write(true).create_new(true).open(place);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_above(place)?;
            create()
        }
        created => created,
    }
}

fn create_above(place: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    // Mostly only the innermost one is missing.
    for folder in place.ancestors().skip(1) {
        match create_folder(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(folder),
            created => {
                created?;
                break;
            }
        }
    }
    missing.into_iter().rev().try_for_each(create_folder)
}

/// Creates a folder that was missing a moment ago; another writer may just have done so.
fn create_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Syncs a folder. Returns nothing if the file system does not know when it was created.
fn sync_folder(folder: &Path) -> io::Result<Option<FolderId>> {
    let folder = File::open(folder)?;
    folder.sync_all()?;
    let metadata = folder.metadata()?;
    Ok(metadata.created().ok().map(|created| (metadata.ino(), created)))
}

/// Makes names durable.
#[derive(Debug)]
pub(crate) struct Folders {
    /// The store's folder, which [`create_root`] or its operator has created.
    root: PathBuf,
    /// Folders whose entry is durable, as are those of all folders above them.
    durable: BoundedMap<PathBuf, FolderId>,
}

impl Folders {
    /// The folders under `root`, none of which is known to be durable.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, durable: BoundedMap::new(limits::STORE_FOLDERS_REMEMBERED_MAX, None) }
    }

    /// Makes a file that another writer has named durable.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn sync_file(&self, place: &Path) -> io::Result<()> {
        File::open(place)?.sync_all()?;
        self.sync_above(place)
    }

    /// Makes the name of the file at `place` durable; its content is for its writer to sync.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn sync_above(&self, place: &Path) -> io::Result<()> {
        self.sync_each(place, sync_folder)
    }

    /// Syncs the folder of a file, for the file's entry, and then those above it, each for the entry of the one below, until
    /// that is known to be durable.
    fn sync_each(
        &self,
        place: &Path,
        mut sync: impl FnMut(&Path) -> io::Result<Option<FolderId>>,
    ) -> io::Result<()> {
        let mut synced = Vec::new();
        for folder in place.ancestors().skip(1) {
            let id = sync(folder)?;
            if folder == self.root {
                break;
            }
            let Some(id) = id else { continue };
            let folder = folder.to_path_buf();
            if self.durable.get(&folder) == Some(id) {
                break;
            }
            synced.push((folder, id));
        }
        self.durable.insert_all(synced);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn is_durable(&self, folder: &Path) -> bool {
        self.durable.contains(&folder.to_path_buf())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What happens in a directory.
    #[derive(Debug, Clone)]
    enum Step {
        /// A writer creates a file, if it is not there.
        Create(String),
        /// A file's writer makes its name durable; the disk fails after so many syncs.
        Sync(String, usize),
        /// Another process creates a folder, and has not synced it.
        CreateElsewhere(String),
        /// This or another process deletes a folder with all that is in it.
        Delete(String),
    }

    fn any_folder() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..4).prop_map(|names| names.join("/"))
    }

    fn any_file() -> impl Strategy<Value = String> {
        (any_folder(), prop::sample::select(vec!["1", "2"]))
            .prop_map(|(folder, name)| format!("{folder}/{name}"))
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let syncs = prop_oneof![4 => Just(usize::MAX), 1 => 0..4_usize];
        prop_oneof![
            4 => any_file().prop_map(Step::Create),
            6 => (any_file(), syncs).prop_map(|(file, syncs)| Step::Sync(file, syncs)),
            1 => any_folder().prop_map(Step::CreateElsewhere),
            1 => any_folder().prop_map(Step::Delete),
        ]
    }

    /// A directory, and the entries in it that a power failure would leave: what a sync of their folder found. A folder is
    /// another one once it or one above it was deleted.
    struct Disk {
        directory: tempfile::TempDir,
        folders: Folders,
        durable: BTreeSet<PathBuf>,
        deleted: Vec<PathBuf>,
    }

    impl Disk {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let folders = Folders::new(directory.path().to_owned());
            Self { directory, folders, durable: BTreeSet::new(), deleted: Vec::new() }
        }

        fn place(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn create(&self, name: &str) {
            match create_file(&self.place(name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => _ = created.expect("creates"),
            }
        }

        /// Syncs what a name needs, on a disk that fails after `syncs`. The folders, if it did not fail.
        fn sync(&mut self, name: &str, mut syncs: usize) -> Option<Vec<PathBuf>> {
            let (place, durable, deleted) = (self.place(name), &mut self.durable, &self.deleted);
            let mut synced = Vec::new();
            let done = self.folders.sync_each(&place, |folder| {
                syncs = syncs.checked_sub(1).ok_or(io::ErrorKind::Other)?;
                for entry in fs::read_dir(folder)? {
                    durable.insert(entry?.path());
                }
                synced.push(folder.to_owned());
                let id = deleted.iter().filter(|deleted| folder.starts_with(deleted)).count();
                Ok(Some((id as u64, SystemTime::UNIX_EPOCH)))
            });
            done.ok().map(|()| synced)
        }

        fn execute(&mut self, step: &Step) {
            match step {
                Step::Create(name) => self.create(name),
                Step::Sync(name, syncs) if self.place(name).exists() => {
                    if self.sync(name, *syncs).is_none() {
                        return;
                    }
                    let place = self.place(name);
                    for entry in place.ancestors().take_while(|entry| *entry != self.directory.path()) {
                        assert!(self.durable.contains(entry), "{} would be lost", entry.display());
                    }
                }
                Step::Sync(..) => {}
                Step::CreateElsewhere(name) => fs::create_dir_all(self.place(name)).expect("creates"),
                Step::Delete(name) => {
                    let place = self.place(name);
                    let _ = fs::remove_dir_all(&place);
                    self.durable.retain(|entry| !entry.starts_with(&place));
                    self.deleted.push(place);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_synced_survives_whoever_creates_deletes_and_fails(
            steps in prop::collection::vec(any_step(), 0..24),
        ) {
            let mut disk = Disk::new();
            steps.iter().for_each(|step| disk.execute(step));
        }
    }

    #[test]
    fn a_folder_costs_its_parent_one_sync() {
        let mut disk = Disk::new();
        let mut syncs_of = |name: &str| {
            disk.create(name);
            disk.sync(name, usize::MAX).expect("nothing fails").len()
        };
        assert_eq!(syncs_of("c/new/1"), 3, "its folder, that one's, and the root");
        assert_eq!(syncs_of("c/new/2"), 1, "all above is known");
        assert_eq!(syncs_of("c/other/1"), 2, "what a PUT pays");
        assert_eq!(syncs_of("c/other/2"), 1);
    }

    #[test]
    fn a_folder_that_was_deleted_is_created_and_synced_again() {
        let mut disk = Disk::new();
        disk.create("c/new/1");
        disk.sync("c/new/1", usize::MAX).expect("nothing fails");
        disk.execute(&Step::Delete("c/new".to_owned()));
        disk.create("c/new/1");
        let synced = disk.sync("c/new/1", usize::MAX).expect("nothing fails");
        assert_eq!(synced, [disk.place("c/new"), disk.place("c")]);
    }

    #[test]
    fn a_folder_is_told_from_its_successor_and_from_its_parent() {
        let directory = tempfile::tempdir().expect("a directory");
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        [&old, &new].into_iter().try_for_each(fs::create_dir).expect("creates");
        let ids = [directory.path(), &old, &new].map(|folder| sync_folder(folder).expect("syncs"));
        assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
        fs::rename(&new, &old).expect("an empty folder is replaced");
        assert_eq!(sync_folder(&old).expect("syncs"), ids[2]);
    }

    #[test]
    fn a_store_s_folder_is_created_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("a/b/c");
        create_root(&root).expect("creates");
        create_root(&root).expect("is there");
        assert!(root.is_dir());
        fs::write(root.join("file"), b"").expect("writes");
        create_root(&root.join("file/store")).expect_err("a file is no folder");
    }
}
