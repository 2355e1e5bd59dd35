//! The store as the rest of the crate uses it: objects by key, and errors that name the operation.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use kvasir_store::{
    OpenStore, StoreAbilities, StoreError,
    layout::{Key, Layout, ListedKey},
};
use kvasir_types::Name;
use object_store::{
    Error, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path,
};

use crate::{
    listing::{Lister, Listing},
    transitions::{CrashPointObserver, Transition},
};

/// An open store and its capabilities, for the parts of the storage core.
#[derive(Debug)]
pub(crate) struct Bucket {
    open: OpenStore,
    abilities: StoreAbilities,
    crash_points: Arc<dyn CrashPointObserver>,
}

impl Bucket {
    pub(crate) fn new(
        open: OpenStore,
        abilities: StoreAbilities,
        crash_points: Arc<dyn CrashPointObserver>,
    ) -> Self {
        Self { open, abilities, crash_points }
    }

    pub(crate) fn open(&self) -> &OpenStore {
        &self.open
    }

    pub(crate) fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.open.layout()
    }

    pub(crate) fn objects(&self) -> &Arc<dyn ObjectStore> {
        self.open.objects()
    }

    pub(crate) fn path(&self, key: &Key) -> Path {
        self.layout().path(key)
    }

    /// Whether the data of `tenant` is sealed.
    pub(crate) fn seals(&self, tenant: &Name) -> bool {
        self.open.seals(tenant)
    }

    /// Whether it lists in the order of names; a walk of folders does not.
    pub(crate) fn lists_in_order(&self) -> bool {
        self.open.directory().is_none()
    }

    /// The store's time in ms; see [`OpenStore::now_ms`].
    pub(crate) fn now_ms(&self) -> Option<i64> {
        self.open.now_ms()
    }

    /// Reports a transition to the crash-point observer.
    pub(crate) fn reached(&self, transition: Transition) {
        self.crash_points.reached(transition);
    }

    /// The bytes of an object; `None` if it does not exist.
    pub(crate) async fn get(
        &self,
        path: &Path,
        operation: &'static str,
    ) -> Result<Option<Bytes>, StoreError> {
        self.get_with(path, GetOptions::default(), operation).await
    }

    /// As [`get`](Self::get), with options.
    pub(crate) async fn get_with(
        &self,
        path: &Path,
        options: GetOptions,
        operation: &'static str,
    ) -> Result<Option<Bytes>, StoreError> {
        match self.open_object(path, options, operation).await? {
            Some(found) => Ok(Some(found.bytes().await.map_err(StoreError::request(operation))?)),
            None => Ok(None),
        }
    }

    /// Opens an object for reading; `None` if it does not exist.
    pub(crate) async fn open_object(
        &self,
        path: &Path,
        options: GetOptions,
        operation: &'static str,
    ) -> Result<Option<GetResult>, StoreError> {
        present(self.objects().get_opts(path, options).await).map_err(StoreError::request(operation))
    }

    /// Metadata of an object; `None` if it does not exist.
    pub(crate) async fn head(
        &self,
        path: &Path,
        operation: &'static str,
    ) -> Result<Option<ObjectMeta>, StoreError> {
        present(self.objects().head(path).await).map_err(StoreError::request(operation))
    }

    /// Writes an object, replacing any existing one.
    pub(crate) async fn put(
        &self,
        path: &Path,
        payload: PutPayload,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        self.objects().put(path, payload).await.map(drop).map_err(StoreError::request(operation))
    }

    /// Writes the marker of an opaque object that listings include.
    pub(crate) async fn write_listed(&self, listed: ListedKey) -> Result<(), StoreError> {
        let path = self.path(&Key::Listed(listed));
        self.put(&path, PutPayload::new(), "recording an object's key").await?;
        self.reached(Transition::KeyListed);
        Ok(())
    }

    /// Writes an object unless it exists. Returns whether it was written.
    pub(crate) async fn create(
        &self,
        path: &Path,
        payload: PutPayload,
        operation: &'static str,
    ) -> Result<bool, StoreError> {
        match self.objects().put_opts(path, payload, PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(StoreError::request(operation)(error)),
        }
    }

    /// Deletes an object; deleting a missing one succeeds.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        let deleted = present(self.objects().delete(path).await);
        deleted.map(drop).map_err(StoreError::request("deleting an object"))
    }

    /// Lists the objects under `prefix` that are named by a key of the layout.
    pub(crate) fn list(&self, prefix: &Path, operation: &'static str) -> Listing {
        self.lister(operation).paged(prefix)
    }

    /// Like [`list`](Self::list), after `offset`.
    pub(crate) fn list_behind(&self, prefix: &Path, offset: &Path, operation: &'static str) -> Listing {
        self.lister(operation).paged_behind(prefix, offset)
    }

    /// Like [`list`](Self::list), with long folders of chunks read by several requests at once.
    pub(crate) fn list_long(&self, prefix: &Path, operation: &'static str) -> Listing {
        self.lister(operation).all(prefix)
    }

    /// The chunks or tombstones in `folder` whose hash begins with one of these hex digits.
    pub(crate) fn list_hashes(&self, folder: &Path, digits: Range<u8>, operation: &'static str) -> Listing {
        self.lister(operation).hashes(folder, digits)
    }

    fn lister(&self, operation: &'static str) -> Lister {
        let (objects, layout) = (Arc::clone(self.objects()), self.layout().clone());
        Lister { objects, layout, is_ordered: self.lists_in_order(), operation }
    }

    /// Names of the folders directly under `prefix`, without those that are not a `T`.
    pub(crate) async fn folders<T: std::str::FromStr>(
        &self,
        prefix: &Path,
        operation: &'static str,
    ) -> Result<Vec<T>, StoreError> {
        let listed = self.objects().list_with_delimiter(Some(prefix)).await;
        let folders = listed.map_err(StoreError::request(operation))?.common_prefixes;
        Ok(folders.iter().filter_map(|folder| folder.parts().next_back()?.as_ref().parse().ok()).collect())
    }
}

/// The result of a request; `None` if the object does not exist.
fn present<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
