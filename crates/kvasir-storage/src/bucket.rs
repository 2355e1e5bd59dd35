//! The store as the rest of the crate uses it: objects by their keys, and errors that name the operation.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future, stream::BoxStream};
use kvasir_store::{
    OpenStore, StoreAbilities, StoreError,
    layout::{Key, Layout, ListedKey},
};
use kvasir_types::Name;
use object_store::{
    Error, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path,
};

use crate::transitions::{CrashPointObserver, Transition};

/// An open store with what it can do, for the parts of the storage core.
#[derive(Debug)]
pub(crate) struct Bucket {
    open: OpenStore,
    abilities: StoreAbilities,
    crash_points: Arc<dyn CrashPointObserver>,
}

/// Objects of a listing whose names are keys of the layout, with their metadata.
pub(crate) type Listing = BoxStream<'static, Result<(Key, ObjectMeta), StoreError>>;

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

    /// Whether what is stored of `tenant` is sealed.
    pub(crate) fn seals(&self, tenant: &Name) -> bool {
        self.open.seals(tenant)
    }

    /// The store's time in ms; see [`OpenStore::now_ms`].
    pub(crate) fn now_ms(&self) -> Option<i64> {
        self.open.now_ms()
    }

    /// Reports a transition to the crash-point observer.
    pub(crate) fn reached(&self, transition: Transition) {
        self.crash_points.reached(transition);
    }

    /// The bytes of an object; none where it is not there.
    pub(crate) async fn get(
        &self,
        path: &Path,
        operation: &'static str,
    ) -> Result<Option<Bytes>, StoreError> {
        let failed = StoreError::request(operation);
        match self.open_object(path, GetOptions::default(), operation).await? {
            Some(found) => Ok(Some(found.bytes().await.map_err(failed)?)),
            None => Ok(None),
        }
    }

    /// Opens an object for reading; none where it is not there.
    pub(crate) async fn open_object(
        &self,
        path: &Path,
        options: GetOptions,
        operation: &'static str,
    ) -> Result<Option<GetResult>, StoreError> {
        present(self.objects().get_opts(path, options).await).map_err(StoreError::request(operation))
    }

    /// Metadata of an object; none where it is not there.
    pub(crate) async fn head(
        &self,
        path: &Path,
        operation: &'static str,
    ) -> Result<Option<ObjectMeta>, StoreError> {
        present(self.objects().head(path).await).map_err(StoreError::request(operation))
    }

    /// Writes an object, whatever was there.
    pub(crate) async fn put(
        &self,
        path: &Path,
        payload: PutPayload,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        self.objects().put(path, payload).await.map(drop).map_err(StoreError::request(operation))
    }

    /// Writes the marker of an opaque object that is to be listed.
    pub(crate) async fn write_listed(&self, listed: ListedKey) -> Result<(), StoreError> {
        let path = self.path(&Key::Listed(listed));
        self.put(&path, PutPayload::new(), "writing an object's key down").await?;
        self.reached(Transition::KeyListed);
        Ok(())
    }

    /// Writes an object unless there is one. Says whether it did.
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

    /// Deletes an object; one that is not there is deleted.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        let deleted = present(self.objects().delete(path).await);
        deleted.map(drop).map_err(StoreError::request("deleting an object"))
    }

    /// Lists what lies under `prefix` and is named by a key of the layout.
    pub(crate) fn list(&self, prefix: &Path, operation: &'static str) -> Listing {
        self.keyed(self.objects().list(Some(prefix)), operation)
    }

    /// As [`list`](Self::list), behind `offset`.
    pub(crate) fn list_behind(&self, prefix: &Path, offset: &Path, operation: &'static str) -> Listing {
        self.keyed(self.objects().list_with_offset(Some(prefix), offset), operation)
    }

    fn keyed(
        &self,
        listing: BoxStream<'static, object_store::Result<ObjectMeta>>,
        operation: &'static str,
    ) -> Listing {
        let layout = self.layout().clone();
        let keyed =
            move |meta: ObjectMeta| future::ready(Ok(layout.parse(&meta.location).map(|key| (key, meta))));
        listing.map_err(StoreError::request(operation)).try_filter_map(keyed).boxed()
    }

    /// Names of the folders right under `prefix`, those that are no `T` left out.
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

/// What a call brought; none where the object is not there.
fn present<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
