//! Models and profiles: immutable, named by their content.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, future, stream};
use kvasir_api::{
    MeasuredLevel, ModelInfo, ModelList, ProfileInfo, ProfileLevels, ProfileList, RegisteredModel,
};
use kvasir_container::{PROFILE_HEAD_BYTES_MAX, ProfileHead, ProfileLevel, ProfileOrigin};
use kvasir_store::{StoreError, layout::Key, of_tenant, synced};
use kvasir_types::{ModelId, ModelSpec, Name, ProfileHash};
use object_store::GetOptions;

use super::Catalog;
use crate::{
    error::{CatalogError, ChunkError},
    index::Scope,
    limits,
    object_read::ObjectRead,
    transitions::Transition,
};

impl Catalog {
    /// Size of a model's spec in the store, in bytes.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a spec without a JSON form.
    pub fn spec_bytes(spec: &ModelSpec) -> Result<u64, StoreError> {
        Ok(spec_json(spec)?.len() as u64)
    }

    /// Writes the spec of a model that has none. Idempotent.
    ///
    /// # Errors
    /// [`CatalogError::InvalidSpec`], [`Store`](CatalogError::Store).
    pub(crate) async fn register_model(
        &self,
        tenant: &Name,
        spec: ModelSpec,
    ) -> Result<RegisteredModel, CatalogError> {
        spec.validate()?;
        let model_id = spec.model_id();
        let path = self.bucket.path(&Key::Spec { tenant: tenant.clone(), model_id });
        let json = spec_json(&spec)?;
        let created = match self.model(tenant, &model_id).await {
            Ok(_) => false,
            // Two spellings of one spec have the same id: either one in the store is equivalent.
            Err(CatalogError::UnknownModel { .. }) => {
                self.bucket.create(&path, json.into(), "storing a model spec").await?
            }
            Err(error) => return Err(error),
        };
        if created {
            self.bucket.reached(Transition::SpecWritten);
        }
        self.models.insert((tenant.clone(), model_id), Arc::new(spec));
        Ok(RegisteredModel { model_id, created })
    }

    /// A registered model.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`], [`Store`](CatalogError::Store).
    pub async fn model(&self, tenant: &Name, model_id: &ModelId) -> Result<Arc<ModelSpec>, CatalogError> {
        if *model_id == ModelId::OPAQUE {
            return Err(CatalogError::UnknownModel { model_id: *model_id });
        }
        let key = (tenant.clone(), *model_id);
        if let Some(spec) = self.models.get(&key) {
            return Ok(spec);
        }
        let path = self.bucket.path(&Key::Spec { tenant: tenant.clone(), model_id: *model_id });
        // Another replica may have written it just now, and who is answered relies on it.
        let json = self.bucket.get_with(&path, synced(), "reading a model spec").await?;
        let json = json.ok_or(CatalogError::UnknownModel { model_id: *model_id })?;
        let damaged = |reason: String| StoreError::Damaged { what: "a model spec", reason };
        let spec: ModelSpec = serde_json::from_slice(&json).map_err(|e| damaged(e.to_string()))?;
        if spec.model_id() != *model_id {
            return Err(damaged(format!("it is of {}", spec.model_id())).into());
        }
        let spec = Arc::new(spec);
        self.models.insert(key, Arc::clone(&spec));
        Ok(spec)
    }

    /// Opens a profile for reading.
    ///
    /// # Errors
    /// [`CatalogError::UnknownProfile`], [`Store`](CatalogError::Store).
    pub async fn read_profile(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> Result<ObjectRead, CatalogError> {
        let path = self.profile_path(tenant, model_id, profile_hash);
        let found = self.bucket.open_object(&path, of_tenant(tenant), "reading a profile").await?;
        let unknown = CatalogError::UnknownProfile { model_id: *model_id, profile_hash: *profile_hash };
        found.map(ObjectRead::whole).ok_or(unknown)
    }

    /// A tenant's models, by id.
    ///
    /// # Errors
    /// [`CatalogError::Store`].
    pub async fn models(&self, tenant: &Name) -> Result<ModelList, CatalogError> {
        let mut ids = self.list_models(tenant).await?;
        ids.sort_unstable();
        ids.truncate(limits::MODELS_LISTED_MAX);
        let specs = stream::iter(ids)
            .map(async |model_id| (model_id, self.model(tenant, &model_id).await))
            .buffered(limits::SPECS_PARALLEL);
        let mut specs = std::pin::pin!(specs);
        let mut models = Vec::new();
        while let Some((model_id, spec)) = specs.next().await {
            match spec {
                Ok(spec) => models.push(ModelInfo {
                    model_id,
                    model_name: spec.weights.clone(),
                    revision: spec.revision.clone(),
                    lora_name: spec.adapter.clone(),
                }),
                // A folder whose spec was removed, or never written.
                Err(CatalogError::UnknownModel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ModelList { models })
    }

    /// A profile's levels.
    ///
    /// # Errors
    /// As [`read_profile`](Self::read_profile).
    pub async fn profile_levels(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> Result<ProfileLevels, CatalogError> {
        let mut read = self.read_profile(tenant, model_id, profile_hash).await?;
        let mut start = Vec::new();
        let failed = |error: ChunkError| StoreError::own("reading a profile", &error.to_string());
        while start.len() < PROFILE_HEAD_BYTES_MAX
            && let Some(part) = read.bytes.try_next().await.map_err(failed)?
        {
            start.extend_from_slice(&part);
        }
        Ok(levels(*profile_hash, ProfileHead::read(&start).ok().map(|(head, _)| head)))
    }

    /// A model's profiles, by hash.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`], [`Store`](CatalogError::Store).
    pub async fn list_profiles(
        &self,
        tenant: &Name,
        model_id: &ModelId,
    ) -> Result<ProfileList, CatalogError> {
        self.model(tenant, model_id).await?;
        let prefix = self.bucket.layout().profiles_prefix(tenant, model_id);
        let listed = self.bucket.list(&prefix, "listing profiles").take(limits::PROFILES_LISTED_MAX);
        let infos = listed.try_filter_map(|(key, meta)| {
            future::ready(Ok(match key {
                Key::Profile { profile_hash, .. } => Some(ProfileInfo {
                    profile_hash,
                    bytes: meta.size,
                    stored_at_ms: u64::try_from(meta.last_modified.timestamp_millis()).ok(),
                }),
                _ => None,
            }))
        });
        let mut profiles: Vec<_> = infos.try_collect().await?;
        profiles.sort_by_key(|info| info.profile_hash);
        Ok(ProfileList { profiles })
    }

    pub(crate) async fn profile_exists(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> Result<(), CatalogError> {
        let key = (Scope::new(tenant, model_id), *profile_hash);
        if self.profiles.contains(&key) {
            return Ok(());
        }
        let path = self.profile_path(tenant, model_id, profile_hash);
        let head = GetOptions { head: true, ..synced() };
        if self.bucket.open_object(&path, head, "checking a profile").await?.is_none() {
            let (model_id, profile_hash) = (*model_id, *profile_hash);
            return Err(CatalogError::UnknownProfile { model_id, profile_hash });
        }
        self.profiles.insert(key, ());
        Ok(())
    }

    /// Remembers a profile that is in the store.
    pub(crate) fn remember_profile(&self, scope: Scope, profile_hash: ProfileHash) {
        self.profiles.insert((scope, profile_hash), ());
    }

    /// A recently used model.
    pub(crate) fn known_model(&self, tenant: &Name, model_id: &ModelId) -> Option<Arc<ModelSpec>> {
        self.models.get(&(tenant.clone(), *model_id))
    }

    /// The models of a tenant.
    pub(crate) async fn list_models(&self, tenant: &Name) -> Result<Vec<ModelId>, StoreError> {
        let mut models: Vec<ModelId> =
            self.bucket.folders(&self.bucket.layout().models_prefix(tenant), "listing models").await?;
        models.retain(|model_id| *model_id != ModelId::OPAQUE);
        Ok(models)
    }

    /// All tenants with data in the store.
    pub(crate) async fn tenants(&self) -> Result<Vec<Name>, StoreError> {
        self.bucket.folders(&self.bucket.layout().tenants_prefix(), "listing tenants").await
    }

    pub(crate) fn profile_path(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
    ) -> object_store::path::Path {
        let (tenant, model_id, profile_hash) = (tenant.clone(), *model_id, *profile_hash);
        self.bucket.path(&Key::Profile { tenant, model_id, profile_hash })
    }
}

fn spec_json(spec: &ModelSpec) -> Result<Vec<u8>, StoreError> {
    let damaged = |e: serde_json::Error| StoreError::Damaged { what: "a model spec", reason: e.to_string() };
    serde_json::to_vec_pretty(spec).map_err(damaged)
}

/// The levels in the head; none if there is no head, or its numbers are invalid.
fn levels(profile_hash: ProfileHash, head: Option<ProfileHead>) -> ProfileLevels {
    let is_number = |level: &ProfileLevel| {
        level.bits_per_element.is_finite() && level.nmse.is_finite() && level.kl.is_none_or(f32::is_finite)
    };
    let Some(head) = head.filter(|head| head.levels.iter().all(is_number)) else {
        let (made, empty) = ("unknown".to_owned(), String::new());
        return ProfileLevels {
            profile_hash,
            made,
            recipe: empty.clone(),
            note: empty,
            trained_tokens: 0,
            held_out_tokens: 0,
            exact_tokens: 0,
            levels: Vec::new(),
        };
    };
    let finest_lossy = head.levels.iter().rposition(|level| level.nmse > 0.0);
    let transparent = finest_lossy.filter(|_| head.origin() != ProfileOrigin::ByHand);
    let level = |(index, level): (usize, &ProfileLevel)| {
        let quality = match level.nmse > 0.0 {
            false => Some("exact"),
            true => (transparent == Some(index)).then_some("transparent"),
        };
        MeasuredLevel {
            level: u8::try_from(index).unwrap_or(u8::MAX),
            bits_per_element: level.bits_per_element,
            nmse: level.nmse,
            kl: level.kl,
            quality: quality.map(str::to_owned),
        }
    };
    ProfileLevels {
        profile_hash,
        made: head.origin().as_str().to_owned(),
        levels: head.levels.iter().enumerate().map(level).collect(),
        recipe: head.recipe,
        note: head.note,
        trained_tokens: head.tokens,
        held_out_tokens: head.held_out_tokens,
        exact_tokens: head.exact_tokens.into(),
    }
}
