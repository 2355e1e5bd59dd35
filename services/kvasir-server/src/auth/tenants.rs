//! The tenants file: tokens by their SHA-256, and quotas.
//!
//! ```toml
//! [[token]]
//! name = "ci"                 # for the audit log
//! tenant = "team-a"
//! role = "write"              # read, write, admin or operator
//! sha256 = "…64 hex digits…"  # of the token; `kvasir token` makes both
//! expires = "2027-01-31T00:00:00Z"   # optional
//!
//! [[access_key]]              # for S3 clients
//! name = "lmcache"            # for the audit log
//! tenant = "team-a"
//! role = "write"
//! id = "KV…"
//! secret = "…"                # signatures need it in the clear; `kvasir token --s3` makes both
//! expires = "2027-01-31T00:00:00Z"   # optional
//!
//! [tenant.team-a]             # optional, as is every line of it
//! requests_per_second = 500
//! requests_at_once = 64
//! egress_bytes_per_second = 1000000000
//! stored_bytes = 2000000000000
//! stored_objects = 100000
//! ```

use std::{collections::HashMap, fmt, sync::Arc, time::SystemTime};

use aws_lc_rs::{constant_time::verify_slices_are_equal, digest};
use data_encoding::{BASE32_NOPAD, BASE64URL};
use kvasir_api::Role;
use kvasir_storage::StoredQuota;
use kvasir_store::Secret;
use kvasir_types::Name;
use serde::Deserialize;

use super::principal::Principal;
use crate::{limits, toml_error};

/// Limits of one tenant; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    pub(crate) requests_per_second: Option<u32>,
    pub(crate) requests_at_once: Option<u32>,
    pub(crate) egress_bytes_per_second: Option<u64>,
    pub(crate) stored_bytes: Option<u64>,
    pub(crate) stored_objects: Option<u64>,
}

impl Quota {
    /// The limits on stored data.
    pub(crate) fn stored(&self) -> StoredQuota {
        StoredQuota { objects: self.stored_objects, bytes: self.stored_bytes }
    }
}

/// The contents of the file.
#[derive(Debug)]
pub(crate) struct Tenants {
    /// By a hash of the token's SHA-256 under a key of this process, so that lookup times reveal nothing.
    tokens: HashMap<[u8; 32], Token>,
    slot_key: [u8; 32],
    /// By id; ids are not secret.
    access_keys: HashMap<String, AccessKey>,
    quotas: HashMap<Name, Quota>,
}

#[derive(Debug)]
struct AccessKey {
    secret: Secret,
    principal: Principal,
    expires: Option<SystemTime>,
}

#[derive(Debug)]
struct Token {
    sha256: [u8; 32],
    principal: Principal,
    expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
    #[serde(default)]
    access_key: Vec<AccessKeyEntry>,
    #[serde(default)]
    tenant: HashMap<Name, Quota>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    tenant: Name,
    role: Role,
    sha256: String,
    #[serde(default)]
    expires: Option<toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessKeyEntry {
    name: String,
    tenant: Name,
    role: Role,
    id: String,
    secret: Secret,
    #[serde(default)]
    expires: Option<toml::Value>,
}

impl Tenants {
    /// Parses a tenants file.
    ///
    /// # Errors
    /// What is wrong, and in which entry.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|e| format!("is not UTF-8: {e}"))?;
        let file: TenantsFile = toml::from_str(text).map_err(|error| {
            format!("is not a valid tenants file: {}", toml_error::describe(text, &error))
        })?;
        if [file.token.len(), file.access_key.len(), file.tenant.len()]
            .iter()
            .any(|&n| n > limits::TOKENS_MAX)
        {
            return Err(format!("has more than {} tokens, access keys or tenants", limits::TOKENS_MAX));
        }
        let mut this = Self {
            tokens: HashMap::new(),
            slot_key: rand::random(),
            access_keys: HashMap::new(),
            quotas: file.tenant,
        };
        for entry in file.access_key {
            let (name, id) = (entry.name.clone(), entry.id.clone());
            let key =
                AccessKey::from_entry(entry).map_err(|problem| format!("access key {name:?}: {problem}"))?;
            if this.access_keys.insert(id, key).is_some() {
                return Err(format!("access key {name:?}: its id occurs twice"));
            }
        }
        for entry in file.token {
            let name = entry.name.clone();
            let token = Token::from_entry(entry).map_err(|problem| format!("token {name:?}: {problem}"))?;
            let slot = this.slot(&token.sha256);
            if this.tokens.insert(slot, token).is_some() {
                return Err(format!("token {name:?}: its sha256 occurs twice"));
            }
        }
        Ok(this)
    }

    /// The principal that holds `credential`, unless it has expired.
    pub(crate) fn principal(&self, credential: &str) -> Option<Principal> {
        let sha256 = sha256(credential.as_bytes());
        let token = self.tokens.get(&self.slot(&sha256))?;
        verify_slices_are_equal(&token.sha256, &sha256).ok()?;
        is_in_force(token.expires).then(|| token.principal.clone())
    }

    /// The principal of an access key and the key's secret, unless it has expired.
    pub(crate) fn access_key(&self, id: &str) -> Option<(Principal, Secret)> {
        let key = self.access_keys.get(id)?;
        is_in_force(key.expires).then(|| (key.principal.clone(), key.secret.clone()))
    }

    pub(crate) fn quota(&self, tenant: &Name) -> Quota {
        self.quotas.get(tenant).copied().unwrap_or_default()
    }

    pub(crate) fn has_stored_quotas(&self) -> bool {
        self.quotas.values().any(|quota| !quota.stored().is_open())
    }

    fn slot(&self, sha256: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(&self.slot_key, sha256).as_bytes()
    }
}

impl Token {
    fn from_entry(entry: TokenEntry) -> Result<Self, String> {
        check_name(&entry.name)?;
        let mut sha256 = [0; 32];
        let digits = entry.sha256.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err("sha256 must be 64 hex digits; `kvasir token` prints them".to_owned());
        }
        for (byte, pair) in sha256.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|e| e.to_string())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|e| e.to_string())?;
        }
        let principal =
            Principal { tenant: entry.tenant, role: entry.role, credential: Arc::from(entry.name.as_str()) };
        Ok(Self { sha256, principal, expires: expiry(entry.expires)? })
    }
}

impl AccessKey {
    fn from_entry(entry: AccessKeyEntry) -> Result<Self, String> {
        check_name(&entry.name)?;
        let is_id = entry.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id || !ACCESS_KEY_ID_BYTES.contains(&entry.id.len()) {
            return Err("its id must be 3 to 128 letters and digits".to_owned());
        }
        if entry.secret.expose().len() < ACCESS_KEY_SECRET_BYTES_MIN {
            return Err(format!("its secret must have at least {ACCESS_KEY_SECRET_BYTES_MIN} characters"));
        }
        let principal =
            Principal { tenant: entry.tenant, role: entry.role, credential: Arc::from(entry.name.as_str()) };
        Ok(Self { secret: entry.secret, principal, expires: expiry(entry.expires)? })
    }
}

/// As in AWS.
const ACCESS_KEY_ID_BYTES: std::ops::RangeInclusive<usize> = 3..=128;
/// Signatures allow offline guessing of the secret, so it must be long.
const ACCESS_KEY_SECRET_BYTES_MIN: usize = 32;

fn check_name(name: &str) -> Result<(), String> {
    let is_line = !name.is_empty() && !name.contains(char::is_control);
    if !is_line || name.len() > limits::CREDENTIAL_NAME_BYTES_MAX {
        return Err(format!(
            "its name must be one line of at most {} bytes",
            limits::CREDENTIAL_NAME_BYTES_MAX
        ));
    }
    Ok(())
}

fn expiry(value: Option<toml::Value>) -> Result<Option<SystemTime>, String> {
    let expires = value.map(|value| match value {
        toml::Value::String(text) => instant(&text),
        toml::Value::Datetime(time) => instant(&time.to_string()),
        _ => Err("expires must be a date and time".to_owned()),
    });
    expires.transpose()
}

fn is_in_force(expires: Option<SystemTime>) -> bool {
    expires.is_none_or(|expires| SystemTime::now() < expires)
}

/// A new token and its entry for the tenants file.
pub struct NewToken {
    /// For the token's user; it is not stored anywhere.
    pub token: String,
    /// For the tenants file: only the token's SHA-256.
    pub entry: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl NewToken {
    /// A token of 256 random bits.
    pub fn generate(name: &str, tenant: &Name, role: Role) -> Self {
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let token = format!("kv_{}", hex(rand::random()));
        let name = toml::Value::String(name.to_owned());
        let entry = format!(
            "[[token]]\nname = {name}\ntenant = \"{tenant}\"\nrole = \"{}\"\nsha256 = \"{}\"\n",
            role.as_str(),
            hex(sha256(token.as_bytes()))
        );
        Self { token, entry }
    }
}

/// A new access key and its entry for the tenants file.
pub struct NewAccessKey {
    /// Its id.
    pub id: String,
    /// Its secret, for the key's user.
    pub secret: String,
    /// For the tenants file, including the secret: checking signatures requires its plain text.
    pub entry: String,
}

impl fmt::Debug for NewAccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewAccessKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl NewAccessKey {
    /// An access key with a secret of 240 random bits.
    pub fn generate(name: &str, tenant: &Name, role: Role) -> Self {
        let (id, secret): ([u8; 10], [u8; 30]) = (rand::random(), rand::random());
        let id = format!("KV{}", BASE32_NOPAD.encode(&id));
        let secret = BASE64URL.encode(&secret);
        let name = toml::Value::String(name.to_owned());
        let entry = format!(
            "[[access_key]]\nname = {name}\ntenant = \"{tenant}\"\nrole = \"{}\"\nid = \"{id}\"\nsecret = \"{secret}\"\n",
            role.as_str(),
        );
        Self { id, secret, entry }
    }
}

fn instant(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339(text)
        .map_err(|e| format!("expires {text:?}: {e}; write it as 2027-01-31T00:00:00Z"))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().try_into().unwrap_or_else(|_| unreachable!("SHA-256 has 32 bytes"))
}

/// Any accepted file must reject an empty credential and short secrets.
#[cfg(any(test, fuzzing))]
pub fn fuzz(text: &[u8]) {
    if let Ok(tenants) = Tenants::parse(text) {
        assert!(tenants.principal("").is_none() && tenants.access_key("").is_none());
        assert!(
            tenants.access_keys.values().all(|key| key.secret.expose().len() >= ACCESS_KEY_SECRET_BYTES_MIN)
        );
    }
}
