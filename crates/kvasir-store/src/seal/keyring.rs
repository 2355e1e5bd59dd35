//! The tenant keys: random, wrapped by the key service, kept beside the tenant's objects.
//!
//! `{tenant}/k/{id of the tenant key}/{id of the wrapping key}` is written once and never changed, so that no two writers
//! can take a key from each other. `{tenant}/k/current` says which one is for what is new, and is created once: first writers
//! agree on one key. Where creates are not conditional they may go on with two, and both open.

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
    limits,
};

/// The tenant keys that this process has opened. None of what it remembers changes.
pub struct Keyring {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) layout: Layout,
    service: Option<Arc<dyn KeyService>>,
    opened: Mutex<HashMap<(Name, TenantKeyId), Opened>>,
    chosen: Mutex<HashMap<Name, TenantKeyId>>,
    /// Whether tenants without a key here have one elsewhere, as somebody looked lately.
    keyed_elsewhere: BoundedMap<Name, bool>,
}

#[derive(Clone)]
struct Opened {
    key: Arc<KeyBytes>,
    /// Under which it is wrapped.
    by: Name,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Why a sealed object cannot be read or written; travels as the source of a store's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The key service has no key, or does not answer.
    #[error(transparent)]
    Key(#[from] KeyServiceError),
    /// A tenant key is gone.
    #[error(
        "the tenant key {id} of tenant {tenant} is not in the store, and what was sealed under it stays closed; remove those chunks"
    )]
    Lost {
        /// Whose.
        tenant: Name,
        /// Which.
        id: String,
    },
    /// A tenant has a key, which this replica was not given.
    #[error(
        "tenant {tenant} is sealed, and this replica has no key of it; give it the tenant's key, or nothing of that tenant is stored or opened here"
    )]
    Missing {
        /// Whose.
        tenant: Name,
    },
    /// A record of a sealed tenant is in the clear.
    #[error(
        "{place} is in the clear, although tenant {tenant} has a key: run `kvasir admin seal --tenant {tenant}`, or remove what lies under {folder}/"
    )]
    Plain {
        /// Whose.
        tenant: Name,
        /// Where it lies.
        place: Path,
        /// All that the tenant has.
        folder: Path,
    },
    /// An object does not open.
    #[error("the object does not open: it was altered, or is not the one that was asked for")]
    Altered,
    /// A record does not open.
    #[error("{place} does not open: it was altered, or is another record")]
    AlteredRecord {
        /// Where it lies.
        place: Path,
    },
    /// Copies are refused.
    #[error("sealed objects are not copied: their place is part of what was sealed")]
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

    /// The sealing error behind a store's error, where there is one.
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
        Self { store, layout, service, opened: Mutex::default(), chosen: Mutex::default(), keyed_elsewhere }
    }

    /// The same store with the keys of `service`.
    pub(crate) fn with(&self, service: Arc<dyn KeyService>) -> Self {
        Self::new(Arc::clone(&self.store), self.layout.clone(), Some(service))
    }

    /// The key service, where there is one.
    pub fn service(&self) -> Option<&Arc<dyn KeyService>> {
        self.service.as_ref()
    }

    /// Whether what is new of `tenant` is sealed.
    pub fn seals(&self, tenant: &Name) -> bool {
        self.current(tenant).is_some()
    }

    fn current(&self, tenant: &Name) -> Option<Name> {
        self.service.as_ref()?.current(tenant)
    }

    /// Whether `tenant` has no key here. Of one that has a key elsewhere nothing is to be written: it would be in the clear, and
    /// whoever has the key would not find it.
    pub(super) async fn is_plain(&self, tenant: &Name) -> Result<bool> {
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

    /// Where something lies below the layout's version: what it is bound to, so that a bucket may be copied elsewhere whole.
    pub fn place<'a>(&self, path: &'a Path) -> &'a str {
        path.as_ref().strip_prefix(self.layout.base().as_ref()).unwrap_or(path.as_ref())
    }

    /// The tenant keys of `tenant` that are opened already.
    pub(super) fn opened(&self, tenant: &Name) -> Vec<Arc<KeyBytes>> {
        let opened = self.opened.lock();
        let own = opened.iter().filter(|((whose, _), _)| whose == tenant);
        own.map(|(_, opened)| Arc::clone(&opened.key)).collect()
    }

    /// The store itself, where nothing is sealed or opened.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The key for what is new of `tenant`, made if there is none.
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
            // Somebody altered it. Any key that is there seals as well.
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

    /// What the choice says, where there is one; nothing that is a key's id where it was altered.
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

    /// A tenant key by its id; wrapped anew if the key service has a newer wrapping key.
    pub(super) async fn key(&self, tenant: &Name, id: &TenantKeyId) -> Result<Arc<KeyBytes>> {
        let current = self.current(tenant);
        let found = self.opened.lock().get(&(tenant.clone(), *id)).cloned();
        let opened = match found {
            Some(opened) => opened,
            None => self.open_key(tenant, id, current.as_ref()).await?,
        };
        if let Some(current) = current.filter(|current| *current != opened.by) {
            self.write(tenant, id, &opened.key, current.clone()).await?;
            tracing::info!(%tenant, key = %current, "a tenant key is wrapped anew; the wrapping key before it may go once every replica has said so");
        }
        Ok(opened.key)
    }

    async fn open_key(&self, tenant: &Name, id: &TenantKeyId, current: Option<&Name>) -> Result<Opened> {
        let wrapped_by = self.listed(tenant).await?.into_iter().filter(|(found, _)| found == id);
        let mut wrapped_by: Vec<Name> = wrapped_by.map(|(_, by)| by).collect();
        // The current wrapping key first; of the others whichever is still there.
        wrapped_by.sort_by_key(|by| Some(by) != current);
        let Some(service) = &self.service else {
            return Err(SealError::Missing { tenant: tenant.clone() }.into());
        };
        let mut last = SealError::lost(tenant, id);
        for by in wrapped_by {
            let place = self.path(tenant, id, &by);
            let wrapped = self.store.get(&place).await?.bytes().await?;
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
