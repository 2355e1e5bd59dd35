//! The tenant keys: random, wrapped by the key service, stored with the tenant's objects.
//!
//! `{tenant}/k/{id of the tenant key}/{id of the wrapping key}` is written once and never changed, so that
//! two writers cannot overwrite each other's key. `{tenant}/k/current` names the one for new objects, and is
//! created once: first writers agree on one key. Without conditional creates they may continue with two, and
//! both open.

use std::{collections::HashMap, sync::Arc};

use futures::TryStreamExt;
use kvasir_types::Name;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, Result, path::Path};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{KeyService, KeyServiceError, plain_prefix::TenantKeyId, segments::KeyBytes};
use crate::{
    cache::BoundedMap,
    layout::{Key, Layout},
    limits, synced,
};

/// The tenant keys that this process has opened. Cached entries never change.
pub struct Keyring {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) layout: Layout,
    service: Option<Arc<dyn KeyService>>,
    opened: Mutex<HashMap<(Name, TenantKeyId), Opened>>,
    chosen: Mutex<HashMap<Name, TenantKeyId>>,
    /// Whether tenants without a key here have one elsewhere, as of the last check.
    keyed_elsewhere: BoundedMap<Name, bool>,
    /// Tenant keys whose rewrapping was attempted lately, and their new wrapping keys.
    rewrapped: BoundedMap<(Name, TenantKeyId, Name), ()>,
}

#[derive(Clone)]
struct Opened {
    key: Arc<KeyBytes>,
    /// Its wrapping key.
    by: Name,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Why a sealed object cannot be read or written; passed as the source of a store's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The key service has no key, or does not respond.
    #[error(transparent)]
    Key(#[from] KeyServiceError),
    /// A tenant key is missing.
    #[error(
        "the tenant key {id} of tenant {tenant} is not in the store, and objects sealed under it cannot be opened; remove those chunks"
    )]
    Lost {
        /// The tenant.
        tenant: Name,
        /// The key.
        id: String,
    },
    /// A tenant has a key that this replica was not given.
    #[error(
        "tenant {tenant} is sealed, and this replica has no key of it; give it the tenant's key; without it, this replica neither stores nor opens that tenant's objects"
    )]
    Missing {
        /// The tenant.
        tenant: Name,
    },
    /// A record of a sealed tenant is unencrypted.
    #[error(
        "{place} is not encrypted, although tenant {tenant} has a key: run `kvasir admin seal --tenant {tenant}`, or remove the objects under {folder}/"
    )]
    Plain {
        /// The tenant.
        tenant: Name,
        /// Its path.
        place: Path,
        /// The folder of the tenant.
        folder: Path,
    },
    /// An object does not open.
    #[error("the object does not open: it was altered, or is not the requested one")]
    Altered,
    /// A record does not open.
    #[error("{place} does not open: it was altered, or is a different record")]
    AlteredRecord {
        /// Its path.
        place: Path,
    },
    /// Copies are not supported.
    #[error("sealed objects cannot be copied: they are bound to their path")]
    Copied,
}

impl SealError {
    fn lost(tenant: &Name, id: &TenantKeyId) -> Self {
        Self::Lost { tenant: tenant.clone(), id: hex(id) }
    }

    /// Whether a key is missing, rather than the object wrong.
    pub fn is_lost_key(&self) -> bool {
        matches!(self, Self::Key(_) | Self::Lost { .. } | Self::Missing { .. })
    }

    /// The sealing error behind a store's error, if there is one.
    pub fn of(error: &Error) -> Option<&Self> {
        let Error::Generic { source, .. } = error else { return None };
        source.downcast_ref()
    }
}

impl From<SealError> for Error {
    fn from(error: SealError) -> Self {
        Self::Generic { store: "sealed", source: Box::new(error) }
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Keyring {
    /// Without a service no tenant has a key.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        layout: Layout,
        service: Option<Arc<dyn KeyService>>,
    ) -> Self {
        let keyed_elsewhere =
            BoundedMap::new(limits::SEAL_TENANTS_REMEMBERED_MAX, Some(limits::SEAL_LOOKED_AT_AGAIN));
        let rewrapped = BoundedMap::new(limits::SEAL_REWRAPS_REMEMBERED_MAX, Some(limits::SEAL_REWRAP_AGAIN));
        let (opened, chosen) = (Mutex::default(), Mutex::default());
        Self { store, layout, service, opened, chosen, keyed_elsewhere, rewrapped }
    }

    /// The same store with the keys of `service`.
    pub(crate) fn with(&self, service: Arc<dyn KeyService>) -> Self {
        Self::new(Arc::clone(&self.store), self.layout.clone(), Some(service))
    }

    /// The key service, if there is one.
    pub fn service(&self) -> Option<&Arc<dyn KeyService>> {
        self.service.as_ref()
    }

    /// Whether new objects of `tenant` are sealed.
    pub fn seals(&self, tenant: &Name) -> bool {
        self.current(tenant).is_some()
    }

    fn current(&self, tenant: &Name) -> Option<Name> {
        self.service.as_ref()?.current(tenant)
    }

    /// Whether `tenant` has no key here. If it has one elsewhere, nothing may be written: it would be
    /// unencrypted, and replicas with the key would not find it.
    ///
    /// # Errors
    /// [`SealError::Missing`], and the store's.
    pub async fn is_plain(&self, tenant: &Name) -> Result<bool> {
        if self.seals(tenant) {
            return Ok(false);
        }
        let keyed = match self.keyed_elsewhere.get(tenant) {
            Some(keyed) => keyed,
            None => {
                let keyed = !self.listed(tenant).await?.is_empty();
                self.keyed_elsewhere.insert(tenant.clone(), keyed);
                keyed
            }
        };
        if keyed { Err(SealError::Missing { tenant: tenant.clone() }.into()) } else { Ok(true) }
    }

    /// A path below the layout's version: objects are bound to it, so that a whole bucket may be copied
    /// elsewhere.
    pub fn place<'a>(&self, path: &'a Path) -> &'a str {
        path.as_ref().strip_prefix(self.layout.base().as_ref()).unwrap_or(path.as_ref())
    }

    /// The already opened tenant keys of `tenant`.
    pub(super) fn opened(&self, tenant: &Name) -> Vec<Arc<KeyBytes>> {
        let opened = self.opened.lock();
        let own = opened.iter().filter(|((whose, _), _)| whose == tenant);
        own.map(|(_, opened)| Arc::clone(&opened.key)).collect()
    }

    /// The store itself, without sealing.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The key for new objects of `tenant`, created if there is none.
    pub async fn newest(&self, tenant: &Name) -> Result<(TenantKeyId, Arc<KeyBytes>)> {
        let known = self.chosen.lock().get(tenant).copied();
        let id = match known {
            Some(id) => id,
            None => self.choose(tenant).await?,
        };
        let key = self.key(tenant, &id).await?;
        self.chosen.lock().insert(tenant.clone(), id);
        Ok((id, key))
    }

    /// Agrees with other writers on one tenant key.
    async fn choose(&self, tenant: &Name) -> Result<TenantKeyId> {
        let place = self.layout.path(&Key::TenantKeyChoice { tenant: tenant.clone() });
        let there = self.listed(tenant).await?.into_iter().map(|(id, _)| id).min();
        let made_before = match self.choice(&place).await? {
            Some(Ok(id)) => return Ok(id),
            // It was altered. Any existing key seals as well.
            Some(Err(())) => return Ok(there.ok_or(SealError::Altered)?),
            None => there,
        };
        let id = match made_before {
            Some(id) => id,
            None => self.make(tenant).await?,
        };
        let text = PutPayload::from(hex(&id).into_bytes());
        match self.store.put_opts(&place, text, PutMode::Create.into()).await {
            Ok(_) | Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.choice(&place).await?.and_then(std::result::Result::ok).unwrap_or(id))
    }

    /// The current choice, if there is one; `Err` if it was altered and is not a key's id.
    async fn choice(&self, place: &Path) -> Result<Option<std::result::Result<TenantKeyId, ()>>> {
        let text = match self.store.get(place).await {
            Ok(found) => found.bytes().await?,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let id = str::from_utf8(&text).ok().filter(|text| text.len() == 32);
        let id = id.and_then(|text| u128::from_str_radix(text, 16).ok()).map(u128::to_be_bytes);
        Ok(Some(id.ok_or(())))
    }

    async fn make(&self, tenant: &Name) -> Result<TenantKeyId> {
        let key: Arc<KeyBytes> = Arc::new(Zeroizing::new(rand::random()));
        let mut id = TenantKeyId::default();
        id.copy_from_slice(&blake3::derive_key("kvasir 2026 tenant key id", &key[..])[..16]);
        let current = self.current(tenant).ok_or_else(|| SealError::lost(tenant, &id))?;
        self.write(tenant, &id, &key, current).await?;
        Ok(id)
    }

    /// A tenant key by its id; wrapped again if the key service has a newer wrapping key.
    pub(super) async fn key(&self, tenant: &Name, id: &TenantKeyId) -> Result<Arc<KeyBytes>> {
        let current = self.current(tenant);
        let found = self.opened.lock().get(&(tenant.clone(), *id)).cloned();
        let opened = match found {
            Some(opened) => opened,
            None => self.open_key(tenant, id, current.as_ref()).await?,
        };
        if let Some(current) = current.filter(|current| *current != opened.by) {
            self.rewrap(tenant, id, &opened.key, &current).await;
        }
        Ok(opened.key)
    }

    /// Wraps a tenant key again. A failure does not concern those who use the open key: a store that takes no
    /// writes can still be read. A later use tries again.
    async fn rewrap(&self, tenant: &Name, id: &TenantKeyId, key: &Arc<KeyBytes>, by: &Name) {
        let attempt = (tenant.clone(), *id, by.clone());
        // Only one read waits for a write that may fail slowly.
        if self.rewrapped.contains(&attempt) {
            return;
        }
        self.rewrapped.insert(attempt, ());
        match self.write(tenant, id, key, by.clone()).await {
            Ok(()) => {
                tracing::info!(%tenant, key = %by, "a tenant key was rewrapped; the previous wrapping key may be removed once every replica has logged this");
            }
            Err(error) => {
                tracing::warn!(%tenant, key = %by, %error, "a tenant key could not be rewrapped; keep the previous wrapping key");
            }
        }
    }

    async fn open_key(&self, tenant: &Name, id: &TenantKeyId, current: Option<&Name>) -> Result<Opened> {
        let wrapped_by = self.listed(tenant).await?.into_iter().filter(|(found, _)| found == id);
        let mut wrapped_by: Vec<Name> = wrapped_by.map(|(_, by)| by).collect();
        // The current wrapping key first; of the others, any that still exists.
        wrapped_by.sort_by_key(|by| Some(by) != current);
        let Some(service) = &self.service else {
            return Err(SealError::Missing { tenant: tenant.clone() }.into());
        };
        let mut last = SealError::lost(tenant, id);
        for by in wrapped_by {
            let place = self.path(tenant, id, &by);
            // Another replica may have written it just now, and what is sealed with it is lost without it.
            let wrapped = self.store.get_opts(&place, synced()).await?.bytes().await?;
            match service.unwrap(tenant, &by, &wrapped, self.place(&place).as_bytes()).await {
                Ok(key) => {
                    let opened = Opened { key: Arc::new(key), by };
                    self.opened.lock().insert((tenant.clone(), *id), opened.clone());
                    return Ok(opened);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last.into())
    }

    async fn write(&self, tenant: &Name, id: &TenantKeyId, key: &Arc<KeyBytes>, by: Name) -> Result<()> {
        let place = self.path(tenant, id, &by);
        let missing = || SealError::Missing { tenant: tenant.clone() };
        let service = self.service.as_ref().ok_or_else(missing)?;
        let wrapped =
            service.wrap(tenant, &by, key, self.place(&place).as_bytes()).await.map_err(SealError::from)?;
        self.store.put(&place, PutPayload::from(wrapped)).await?;
        self.opened.lock().insert((tenant.clone(), *id), Opened { key: Arc::clone(key), by });
        Ok(())
    }

    async fn listed(&self, tenant: &Name) -> Result<Vec<(TenantKeyId, Name)>> {
        let listed: Vec<_> =
            self.store.list(Some(&self.layout.tenant_keys_prefix(tenant))).try_collect().await?;
        let keys = listed.iter().filter_map(|meta| match self.layout.parse(&meta.location) {
            Some(Key::TenantKey { id, wrapped_by, .. }) => Some((id, wrapped_by)),
            _ => None,
        });
        Ok(keys.collect())
    }

    fn path(&self, tenant: &Name, id: &TenantKeyId, by: &Name) -> Path {
        self.layout.path(&Key::TenantKey { tenant: tenant.clone(), id: *id, wrapped_by: by.clone() })
    }
}

fn hex(id: &TenantKeyId) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}
