//! Sources of wrapping keys: a key management service, or a file.

use std::{collections::HashMap, fmt};

use async_trait::async_trait;
use kvasir_types::Name;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{plain_prefix, segments::KeyBytes};
use crate::limits;

/// Wraps and unwraps the keys of tenants. The wrapping keys never leave it.
#[async_trait]
pub trait KeyService: fmt::Debug + Send + Sync {
    /// The wrapping key for new objects of `tenant`; `None`: they are not sealed.
    fn current(&self, tenant: &Name) -> Option<Name>;

    /// Wraps `key`, 32 bytes, with the tenant's key `id`, bound to `context`.
    ///
    /// # Errors
    /// [`KeyServiceError`].
    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError>;

    /// Reverses [`wrap`](Self::wrap).
    ///
    /// # Errors
    /// [`KeyServiceError`].
    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<KeyBytes, KeyServiceError>;
}

/// A key that is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyServiceError {
    /// It no longer exists, or never did.
    #[error(
        "the key {id} of tenant {tenant} is missing; restore it, or the objects under it cannot be opened"
    )]
    Unknown {
        /// The tenant.
        tenant: Name,
        /// The key.
        id: Name,
    },
    /// The wrapped key is damaged, or was wrapped for something else.
    #[error("a wrapped key of tenant {tenant} does not open under the key {id}")]
    Damaged {
        /// The tenant.
        tenant: Name,
        /// The wrapping key.
        id: Name,
    },
}

/// Keys of a TOML file, or of a list in a variable.
///
/// ```toml
/// [[key]]
/// tenant = "team-a"   # or "*": every tenant without keys of its own
/// id = "2026-11"
/// key = "…64 hex digits…"
/// ```
///
/// The last key of a tenant wraps new data; keep earlier ones until the log says that nothing needs them.
#[derive(Debug)]
pub struct FileKeys {
    keys: HashMap<String, Vec<(Name, Hidden)>>,
}

struct Hidden(KeyBytes);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    tenant: String,
    id: Name,
    key: String,
}

impl FileKeys {
    /// Parses a keys file.
    ///
    /// # Errors
    /// What is wrong, and in which entry.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(Self { keys: parsed(text)? })
    }

    /// Parses keys from a variable: `tenant:id:key`, separated by commas.
    ///
    /// # Errors
    /// What is wrong, and in which entry; never a key.
    pub fn parse_list(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).enumerate().map(|(n, entry)| {
            let mut fields = entry.splitn(3, ':');
            let (Some(tenant), Some(id), Some(key)) = (fields.next(), fields.next(), fields.next()) else {
                return Err(format!("entry {n} is not of the form tenant:id:key"));
            };
            let id = id.parse().map_err(|e| format!("entry {n}: its id: {e}"))?;
            Ok(KeyEntry { tenant: tenant.to_owned(), id, key: key.to_owned() })
        });
        Ok(Self { keys: gathered(entries.collect::<Result<_, String>>()?)? })
    }

    /// Tenants whose chunks are sealed, in order; `*` stands for every tenant that is not named.
    pub fn tenants(&self) -> Vec<&str> {
        let mut tenants: Vec<_> = self.keys.keys().map(String::as_str).collect();
        tenants.sort_unstable();
        tenants
    }

    /// Whether these keys may replace `before` in a running service: every tenant that had keys still has
    /// some.
    ///
    /// # Errors
    /// The tenant that would have none.
    pub fn may_follow(&self, before: &Self) -> Result<(), String> {
        match before.tenants().into_iter().find(|tenant| !self.keys.contains_key(*tenant)) {
            Some(tenant) => Err(format!(
                "no longer has a key of tenant {tenant}, whose chunks would be stored unencrypted; restore one, or restart the service if that is intended"
            )),
            None => Ok(()),
        }
    }

    fn with<R>(&self, tenant: &Name, then: impl FnOnce(&[(Name, Hidden)]) -> R) -> R {
        let own = self.keys.get(tenant.as_str()).or_else(|| self.keys.get("*"));
        then(own.map_or(&[], Vec::as_slice))
    }

    fn key<R>(
        &self,
        tenant: &Name,
        id: &Name,
        then: impl FnOnce(&KeyBytes) -> R,
    ) -> Result<R, KeyServiceError> {
        let unknown = || KeyServiceError::Unknown { tenant: tenant.clone(), id: id.clone() };
        self.with(tenant, |keys| {
            keys.iter().find(|(found, _)| found == id).map(|(_, key)| then(&key.0)).ok_or_else(unknown)
        })
    }
}

fn parsed(text: &str) -> Result<HashMap<String, Vec<(Name, Hidden)>>, String> {
    let file: File =
        toml::from_str(text).map_err(|e| format!("is not a valid keys file: {}", e.message()))?;
    gathered(file.key)
}

fn gathered(entries: Vec<KeyEntry>) -> Result<HashMap<String, Vec<(Name, Hidden)>>, String> {
    if entries.is_empty() {
        return Err("contains no key: add a [[key]] with tenant, id and key for each tenant to encrypt, or remove the setting"
            .to_owned());
    }
    if entries.len() > limits::SEAL_KEYS_MAX {
        return Err(format!("has more than {} keys", limits::SEAL_KEYS_MAX));
    }
    let mut keys: HashMap<String, Vec<(Name, Hidden)>> = HashMap::new();
    for KeyEntry { tenant, id, key } in entries {
        let of_tenant = |problem: &str| format!("key {id} of {tenant}: {problem}");
        if tenant != "*" && tenant.parse::<Name>().is_err() {
            return Err(of_tenant("tenant is not a valid name"));
        }
        let mut bytes = Zeroizing::new([0; 32]);
        let key = Zeroizing::new(key);
        let digits = key.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(of_tenant("key must be 64 hex digits; `openssl rand -hex 32` makes them"));
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).unwrap_or_default() as u8;
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
        let own = keys.entry(tenant.clone()).or_default();
        if own.iter().any(|(found, _)| *found == id) {
            return Err(of_tenant("its id occurs twice"));
        }
        own.push((id, Hidden(bytes)));
    }
    Ok(keys)
}

#[async_trait]
impl KeyService for FileKeys {
    fn current(&self, tenant: &Name) -> Option<Name> {
        self.with(tenant, |keys| keys.last().map(|(id, _)| id.clone()))
    }

    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError> {
        let nonce: [u8; 12] = rand::random();
        let wrapped =
            self.key(tenant, id, |by| plain_prefix::wrap(by, &Zeroizing::new(*key), &nonce, context))?;
        Ok([&nonce[..], &wrapped].concat())
    }

    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<KeyBytes, KeyServiceError> {
        let damaged = || KeyServiceError::Damaged { tenant: tenant.clone(), id: id.clone() };
        let (nonce, wrapped) = wrapped.split_at_checked(12).ok_or_else(damaged)?;
        self.key(tenant, id, |by| plain_prefix::unwrap(by, wrapped, nonce, context))?.ok_or_else(damaged)
    }
}
