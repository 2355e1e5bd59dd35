//! Models and profiles: immutable, named by their content.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use kvasir_api::{ProfileInfo, ProfileList, RegisteredModel};
use kvasir_types::{ModelId, ModelSpec, Name, ProfileHash};
use object_store::{ObjectStoreExt, PutMode};

use crate::{
    Storage, StorageError, index::Scope, layout::Key, limits, read::ObjectRead, transitions::Transition,
};

impl Storage {
    /// Registers a model. Idempotent.
    ///
    /// # Errors
    /// [`StorageError::InvalidSpec`], [`Store`](StorageError::Store).
    pub async fn register_model(
        &self,
        tenant: &Name,
        spec: ModelSpec,
    ) -> Result<RegisteredModel, StorageError> {
        spec.validate()?;
        let model_id = spec.model_id();
        let path = self.store.layout.path(&Key::Spec { tenant: tenant.clone(), model_id });
        let json = serde_json::to_vec_pretty(&spec)
            .map_err(|e| StorageError::Damaged { what: "a model spec", reason: e.to_string() })?;
        let created = match self.model(tenant, &model_id).await {
            Ok(_) => false,
            Err(StorageError::UnknownModel { .. }) => {
                match self.store.store.put_opts(&path, json.into(), PutMode::Create.into()).await {
                    Ok(_) => {
                        self.reached(Transition::SpecWritten);
                        true
                    }
                    // Two spellings of one spec have one id: whichever is there says the same.
                    Err(
                        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. },
                    ) => false,
                    Err(e) => return Err(StorageError::store("storing a model spec")(e)),
                }
            }
            Err(error) => return Err(error),
        };
        self.models.insert((tenant.clone(), model_id), Arc::new(spec));
        Ok(RegisteredModel { model_id, created })
    }

    /// A registered model.
    ///
    /// # Errors
    /// [`StorageError::UnknownModel`], [`Store`](StorageError::Store), [`Damaged`](StorageError::Damaged).
    pub async fn model(&self, tenant: &Name, model_id: &ModelId) -> Result<Arc<ModelSpec>, StorageError> {
        let key = (tenant.clone(), *model_id);
        if let Some(spec) = self.models.get(&key) {
            return Ok(spec);
        }
        let path = self.store.layout.path(&Key::Spec { tenant: tenant.clone(), model_id: *model_id });
        let failed = StorageError::store("reading a model spec");
        let json = match self.store.store.get(&path).await {
            Ok(found) => found.bytes().await.map_err(failed)?,
            Err(object_store::Error::NotFound { .. }) => {
                return Err(StorageError::UnknownModel { model_id: *model_id });
            }
            Err(error) => return Err(failed(error)),
        };
        let damaged = |reason: String| StorageError::Damaged { what: "a model spec", reason };
        let spec: ModelSpec = serde_json::from_slice(&json).map_err(|e| damaged(e.to_string()))?;
        if spec.model_id() != *model_id {
            return Err(damaged(format!("it is of {}", spec.model_id())));
        }
        let spec = Arc::new(spec);
        self.models.insert(key, Arc::clone(&spec));
        Ok(spec)
    }

    /// Stores a profile. Gives whether it was new, and its size.
    ///
    /// # Errors
    /// [`StorageError::ProfileMismatch`], [`TooLarge`](StorageError::TooLarge),
    /// [`UnknownModel`](StorageError::UnknownModel), [`Body`](StorageError::Body): nothing is stored.
    /// [`Store`](StorageError::Store).
    pub async fn put_profile<E: std::fmt::Display>(
        self: &Arc<Self>,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(bool, u64), StorageError> {
        self.model(tenant, model_id).await?;
        let mut spool = self.spools.spool(self.store.seals(tenant));
        let mut hash = blake3::Hasher::new();
        let limit = self.settings.profile_bytes_max;
        let mut body = std::pin::pin!(body);
        while let Some(part) = body.next().await {
            let part =
                part.map_err(|e| StorageError::Body { bytes: spool.bytes(), reason: e.to_string() })?;
            if spool.bytes() + part.len() as u64 > limit {
                return Err(StorageError::TooLarge { limit });
            }
            hash.update(&part);
            spool.push(&part).await?;
        }
        let found = ProfileHash::from(*hash.finalize().as_bytes());
        if found != *profile_hash {
            return Err(StorageError::ProfileMismatch { found, expected: *profile_hash });
        }
        let path = self.profile_path(tenant, model_id, profile_hash);
        let (this, bytes) = (Arc::clone(self), spool.bytes());
        let sending = tokio::spawn(async move { spool.send(&this.store.store, &path, false).await });
        let created = sending.await??;
        self.reached(Transition::ProfileWritten);
        if created {
            self.note_stored(tenant, *profile_hash.as_bytes(), bytes);
        }
        self.profiles.insert((Scope::new(tenant, model_id), *profile_hash), ());
        Ok((created, bytes))
    }

    /// Opens a profile for reading.
    ///
    /// # Errors
    /// [`StorageError::UnknownProfile`], [`Store`](StorageError::Store).
    pub async fn read_profile(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> Result<ObjectRead, StorageError> {
        match self.store.store.get(&self.profile_path(tenant, model_id, profile_hash)).await {
            Ok(found) => Ok(ObjectRead::whole(found)),
            Err(object_store::Error::NotFound { .. }) => {
                Err(StorageError::UnknownProfile { model_id: *model_id, profile_hash: *profile_hash })
            }
            Err(error) => Err(StorageError::store("reading a profile")(error)),
        }
    }

    /// A model's profiles, by hash.
    ///
    /// # Errors
    /// [`StorageError::UnknownModel`], [`Store`](StorageError::Store).
    pub async fn list_profiles(
        &self,
        tenant: &Name,
        model_id: &ModelId,
    ) -> Result<ProfileList, StorageError> {
        self.model(tenant, model_id).await?;
        let prefix = self.store.layout.profiles_prefix(tenant, model_id);
        let listed = self.store.store.list(Some(&prefix)).take(limits::PROFILES_LISTED_MAX);
        let listed: Vec<_> = listed.try_collect().await.map_err(StorageError::store("listing profiles"))?;
        let infos = listed.iter().filter_map(|meta| match self.store.layout.parse(&meta.location) {
            Some(Key::Profile { profile_hash, .. }) => Some(ProfileInfo { profile_hash, bytes: meta.size }),
            _ => None,
        });
        let mut profiles: Vec<_> = infos.collect();
        profiles.sort_by_key(|info| info.profile_hash);
        Ok(ProfileList { profiles })
    }

    pub(crate) async fn profile_exists(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> Result<(), StorageError> {
        let key = (Scope::new(tenant, model_id), *profile_hash);
        if self.profiles.contains(&key) {
            return Ok(());
        }
        match self.store.store.head(&self.profile_path(tenant, model_id, profile_hash)).await {
            Ok(_) => {
                self.profiles.insert(key, ());
                Ok(())
            }
            Err(object_store::Error::NotFound { .. }) => {
                Err(StorageError::UnknownProfile { model_id: *model_id, profile_hash: *profile_hash })
            }
            Err(error) => Err(StorageError::store("asking for a profile")(error)),
        }
    }

    fn profile_path(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> object_store::path::Path {
        let (tenant, model_id, profile_hash) = (tenant.clone(), *model_id, *profile_hash);
        self.store.layout.path(&Key::Profile { tenant, model_id, profile_hash })
    }
}
