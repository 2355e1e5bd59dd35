//! Listings of a directory. `object_store` switches to another thread once more to learn that a listing has
//! ended, and asks for the metadata of each file three times: most listings here are of one file.

use std::{
    fs::{self, DirEntry, FileType, Metadata, ReadDir},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path as FilePath, PathBuf},
    time::UNIX_EPOCH,
};

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    Error, ObjectMeta, Result,
    local::LocalFileSystem,
    path::{self, Path},
};

use crate::{file_staged::failed, file_thread::blocking, limits};

/// The objects of `files` under `prefix`, with names greater than `offset` if it is given, in no order. They are
/// those that `object_store` lists: links are followed, and staged files, broken links and what vanishes are left
/// out. Each batch is read with one switch to another thread.
///
/// # Errors
/// As `object_store`; an error ends the listing. `object_store` leaves out a file that the file system refuses to
/// describe; here that is an error: that a key has no other object must not follow from a listing with a gap.
pub(crate) fn objects(
    files: &LocalFileSystem,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let prefix = prefix.cloned().unwrap_or_default();
    // The folder of an object's file: the prefix itself may not be the name of an object.
    let mut root = match files.path_to_filesystem(&prefix.clone().join("object")) {
        Ok(place) => place,
        Err(error) => return stream::iter([Err(error)]).boxed(),
    };
    root.pop();
    let walk = Walk::new(root, prefix, offset.cloned());
    let batches = stream::try_unfold(Some(walk), |walk| async move {
        let Some(walk) = walk else { return Ok::<_, Error>(None) };
        let (batch, rest) = blocking(move || walk.batch()).await?;
        Ok(Some((stream::iter(batch), rest)))
    });
    batches.try_flatten().boxed()
}

/// A walk of a folder and those in it.
struct Walk {
    /// Its beginning, with its name in the store, until that is opened.
    root: Option<(PathBuf, PathBuf)>,
    /// Objects up to this name are left out.
    offset: Option<Path>,
    /// The folders between its beginning and where it is.
    folders: Vec<Folder>,
}

struct Folder {
    place: PathBuf,
    /// Its name in the store.
    name: PathBuf,
    /// What is left of it.
    entries: ReadDir,
}

impl Walk {
    fn new(root: PathBuf, prefix: Path, offset: Option<Path>) -> Self {
        Self { root: Some((root, PathBuf::from(String::from(prefix)))), offset, folders: Vec::new() }
    }

    /// The next objects, and the walk of the rest, unless it has ended.
    fn batch(mut self) -> (Vec<Result<ObjectMeta>>, Option<Self>) {
        let batch: Vec<_> = self.by_ref().take(limits::STORE_LISTED_AT_ONCE).collect();
        let is_full = batch.len() == limits::STORE_LISTED_AT_ONCE;
        (batch, is_full.then_some(self))
    }

    fn advance(&mut self) -> Result<Option<ObjectMeta>> {
        if let Some((place, name)) = self.root.take() {
            self.enter(place, name)?;
        }
        while let Some(folder) = self.folders.last_mut() {
            let Some(entry) = folder.entries.next() else {
                self.folders.pop();
                continue;
            };
            let entry = unless_gone(entry).map_err(|error| failed("listing", &folder.place, &error))?;
            let Some(entry) = entry else { continue };
            let name = folder.name.join(entry.file_name());
            if let Some(object) = self.visit(&entry, name)? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    /// The object that an entry is, if it is one. A folder is walked next.
    fn visit(&mut self, entry: &DirEntry, name: PathBuf) -> Result<Option<ObjectMeta>> {
        let failed = |error: io::Error| failed("listing", &entry.path(), &error);
        let Some((kind, target)) = unless_gone(self.followed(entry)).map_err(failed)? else {
            return Ok(None);
        };
        if kind.is_dir() {
            self.enter(entry.path(), name)?;
            return Ok(None);
        }
        if !kind.is_file() {
            return Ok(None);
        }
        let location = location(&name)?;
        if is_staged(&location) || self.offset.as_ref().is_some_and(|offset| location <= *offset) {
            return Ok(None);
        }
        let metadata = target.map_or_else(|| unless_gone(entry.metadata()), |target| Ok(Some(target)));
        // Its name may be that of a folder by now.
        let Some(metadata) = metadata.map_err(failed)?.filter(Metadata::is_file) else { return Ok(None) };
        object(location, &metadata).map(Some).map_err(failed)
    }

    /// The type of an entry. If it is a link, that of its target, with the target's metadata.
    fn followed(&self, entry: &DirEntry) -> io::Result<(FileType, Option<Metadata>)> {
        let kind = entry.file_type()?;
        if !kind.is_symlink() {
            return Ok((kind, None));
        }
        let target = fs::metadata(entry.path())?;
        if target.is_dir() {
            let identity = |folder: &Metadata| (folder.dev(), folder.ino());
            for folder in &self.folders {
                if identity(&fs::metadata(&folder.place)?) == identity(&target) {
                    return Err(io::Error::other("the link leads to a folder that it is in"));
                }
            }
        }
        Ok((target.file_type(), Some(target)))
    }

    /// Walks a folder next, unless it has vanished.
    fn enter(&mut self, place: PathBuf, name: PathBuf) -> Result<()> {
        match fs::read_dir(&place) {
            Ok(entries) => self.folders.push(Folder { place, name, entries }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The prefix of a listing may be the name of an object, which has none under it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory && place.exists() => {}
            Err(error) => return Err(failed("listing", &place, &error)),
        }
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<ObjectMeta>;

    fn next(&mut self) -> Option<Self::Item> {
        // Nothing follows an error.
        self.advance().inspect_err(|_| self.folders.clear()).transpose()
    }
}

fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn location(name: &FilePath) -> Result<Path> {
    let text = str::from_utf8(name.as_os_str().as_bytes());
    let text = text.map_err(|source| path::Error::NonUnicode { path: name.display().to_string(), source })?;
    Ok(Path::parse(text)?)
}

/// Whether it is a file that is being written, or was when its writer ended.
fn is_staged(location: &Path) -> bool {
    let number = location.filename().and_then(|name| name.split_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Describes a file as `object_store` does, so that both name the same versions.
fn object(location: Path, metadata: &Metadata) -> io::Result<ObjectMeta> {
    let (modified, size) = (metadata.modified()?, metadata.len());
    let micros = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let e_tag = Some(format!("\"{:x}-{micros:x}-{size:x}\"", metadata.ino()));
    Ok(ObjectMeta { location, last_modified: modified.into(), size, e_tag, version: None })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, ffi::OsStr, os::unix::fs::symlink};

    use object_store::ObjectStore;
    use proptest::prelude::*;

    use super::*;
    use crate::file_store::FileStore;

    /// Plain names, names of staged files, names that look like them, and one that a URL escapes.
    const NAMES: &[&str] = &["a", "b", "ab", "a#1", "#2", "b#x", "b#1#2", "b#", "é %2F?"];

    #[derive(Debug, Clone)]
    enum Entry {
        File,
        Folder,
        LinkTo(String),
    }

    fn any_place() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(NAMES), 1..4).prop_map(|names| names.join("/"))
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            6 => Just(Entry::File),
            2 => Just(Entry::Folder),
            1 => any_place().prop_map(Entry::LinkTo),
        ]
    }

    /// Creates the entries, without those whose name is taken or that would be under a file.
    fn fill(root: &FilePath, tree: &[(String, Entry)]) {
        for (place, entry) in tree {
            let place = root.join(place);
            let _ = fs::create_dir_all(place.parent().expect("is under the root"));
            let _ = match entry {
                Entry::File => fs::write(&place, place.as_os_str().as_bytes()),
                Entry::Folder => fs::create_dir(&place),
                Entry::LinkTo(target) => symlink(root.join(target), &place),
            };
        }
    }

    /// What a listing has, by name; `None` if it fails.
    async fn listed(listing: BoxStream<'static, Result<ObjectMeta>>) -> Option<Vec<ObjectMeta>> {
        let mut listed: Vec<ObjectMeta> = listing.try_collect().await.ok()?;
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        Some(listed)
    }

    async fn lists_the_same(root: &FilePath, tree: &[(String, Entry)]) {
        let ours = FileStore::new(root).expect("opens");
        let theirs = LocalFileSystem::new_with_prefix(root).expect("opens");
        let parsed = |name: &str| Path::parse(name).expect("a path");
        let mut places = vec![parsed("missing"), parsed("a/missing")];
        for (place, _) in tree {
            // A folder, a file, and what may be under one.
            places.extend([parsed(place), parsed(&format!("{place}/a"))]);
        }
        assert_eq!(listed(ours.list(None)).await, listed(theirs.list(None)).await, "all");
        for place in &places {
            let here = Some(place);
            assert_eq!(listed(ours.list(here)).await, listed(theirs.list(here)).await, "under {place}");
            let (mine, expected) = (ours.list_with_offset(None, place), theirs.list_with_offset(None, place));
            assert_eq!(listed(mine).await, listed(expected).await, "after {place}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_directory_lists_what_object_store_lists(
            tree in prop::collection::vec((any_place(), any_entry()), 0..12),
        ) {
            let directory = tempfile::tempdir().expect("a directory");
            fill(directory.path(), &tree);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(lists_the_same(directory.path(), &tree));
        }
    }

    fn walk(directory: &tempfile::TempDir) -> Walk {
        Walk::new(directory.path().to_owned(), Path::default(), None)
    }

    #[test]
    fn a_batch_tells_whether_the_listing_has_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str| fs::write(directory.path().join(name), b"").expect("writes");
        write("only");
        let (batch, rest) = walk(&directory).batch();
        assert!(batch.len() == 1 && rest.is_none(), "a second batch would be a second switch");
        (0..limits::STORE_LISTED_AT_ONCE).for_each(|n| write(&n.to_string()));
        let (batch, rest) = walk(&directory).batch();
        let (last, end) = rest.expect("one is left").batch();
        assert_eq!((batch.len(), last.len()), (limits::STORE_LISTED_AT_ONCE, 1));
        assert!(end.is_none());
        let listed = batch.into_iter().chain(last);
        let names: BTreeSet<_> = listed.map(|meta| meta.expect("lists").location).collect();
        assert_eq!(names.len(), limits::STORE_LISTED_AT_ONCE + 1);
    }

    #[test]
    fn files_that_vanish_while_they_are_listed_are_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let places = ["a", "b", "c"].map(|name| directory.path().join(name));
        places.iter().for_each(|place| fs::write(place, b"").expect("writes"));
        let mut walk = walk(&directory);
        walk.next().expect("the first one").expect("lists");
        places.iter().for_each(|place| fs::remove_file(place).expect("is there"));
        assert!(walk.next().is_none());
    }

    #[test]
    fn a_name_that_is_no_text_ends_the_listing_with_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in [&b"\xff"[..], b"\xff\xff"] {
            fs::write(directory.path().join(OsStr::from_bytes(name)), b"").expect("writes");
        }
        let mut walk = walk(&directory);
        assert!(matches!(walk.next(), Some(Err(Error::InvalidPath { .. }))));
        assert!(walk.next().is_none());
    }
}
