//! Identities of engines: what makes pages with equal hashes incompatible.
//!
//! Keys of an engine's pages begin with `ENGINE/DIGEST/`. The digest is that of an identity, JSON of the form
//! `{"place": …, "fields": [[name, value], …]}`. An engine that has stored pages registers its identity as one of the objects
//! `ENGINE/identities/0` and following. One that looked pages up in vain stores its own as `ENGINE/DIGEST/identity`, so that
//! an explanation of the miss can say in what they differ.

use bytes::Bytes;
use kvasir_api::{Cause, ErrorCode, ExplainObjectsResponse, FieldDifference, MissReason, ObjectsRequest};
use kvasir_types::{Name, ObjectKey, ObjectKeyError};
use serde::Deserialize;
use serde_json::Value;

use super::Client;
use crate::{Error, limits};

/// Hexadecimal digits of the digest in keys.
const DIGEST_DIGITS: usize = 32;

#[derive(Debug, Deserialize)]
struct Identity {
    /// Pool, group, stage: an engine has other pages for each.
    place: Value,
    /// Properties that must be equal, with names for users.
    fields: Vec<(String, Value)>,
}

impl Client {
    /// Registers the identity of an engine that has stored pages, unless the register is full.
    ///
    /// # Errors
    /// [`Error::Config`] if the engine's name is too long for a key; otherwise as for every request.
    pub async fn register_identity(
        &self,
        namespace: &Name,
        engine: &str,
        identity: Bytes,
    ) -> Result<(), Error> {
        let keys = registered(engine)?;
        let known = self.read_identities(namespace, &keys).await?;
        if known.contains(&identity.to_vec()) {
            return Ok(());
        }
        for key in keys.get(known.len()..).unwrap_or_default() {
            match self.put_opaque(namespace, key, identity.clone()).await {
                // Another engine took this number first.
                Err(error) if error.code() == Some(ErrorCode::ObjectExists) => {}
                stored => return stored.map(drop),
            }
        }
        Ok(())
    }

    /// How an engine's identity differs from the closest one that is registered for the same place, as a cause of misses;
    /// `None` if an equal one is registered, or none is.
    ///
    /// # Errors
    /// As for [`register_identity`](Self::register_identity).
    pub async fn identity_mismatch(
        &self,
        namespace: &Name,
        engine: &str,
        identity: &[u8],
    ) -> Result<Option<Cause>, Error> {
        let registered = self.read_identities(namespace, &registered(engine)?).await?;
        let differences = differences(identity, &registered);
        let detail = "no stored page fits the engine that asked for this one; compared with the closest engine that stores, \
                      it differs";
        Ok((!differences.is_empty()).then(|| Cause {
            reason: MissReason::OtherModel,
            detail: detail.to_owned(),
            tokens: 0,
            seq_hash: None,
            at_ms: None,
            by: None,
            model_id: None,
            differences,
            namespace: None,
        }))
    }

    /// Adds to an explanation how the engine that asked for the page differs from those that store.
    pub(super) async fn explain_by_identities(
        &self,
        namespace: &Name,
        explained: &mut ExplainObjectsResponse,
    ) -> Result<(), Error> {
        let is_traceless =
            explained.causes.first().is_some_and(|cause| cause.reason == MissReason::NeverStored);
        let page = explained.key.as_ref().filter(|_| is_traceless).and_then(prefix_of);
        let Some((engine, prefix)) = page else { return Ok(()) };
        let asker = self.read_identities(namespace, &[object_key(format!("{prefix}identity"))?]).await?;
        if let Some(asker) = asker.first()
            && let Some(cause) = self.identity_mismatch(namespace, engine, asker).await?
        {
            explained.causes.insert(0, cause);
        }
        Ok(())
    }

    /// The leading ones of the objects, without bytes where one is longer than an identity.
    async fn read_identities(&self, namespace: &Name, keys: &[ObjectKey]) -> Result<Vec<Vec<u8>>, Error> {
        let mut identities: Vec<Vec<u8>> = vec![Vec::new(); keys.len()];
        let take = |index: usize, length: usize, piece: &[u8]| {
            if length <= limits::IDENTITY_BYTES_MAX {
                identities[index].extend_from_slice(piece);
            }
        };
        let count = self.read_opaque_pieces(namespace, keys, take).await?;
        identities.truncate(count);
        Ok(identities)
    }
}

/// Keys of the registered identities: as many as one request reads.
fn registered(engine: &str) -> Result<Vec<ObjectKey>, Error> {
    (0..ObjectsRequest::KEYS_MAX).map(|number| object_key(format!("{engine}/identities/{number}"))).collect()
}

fn object_key(key: String) -> Result<ObjectKey, Error> {
    key.try_into().map_err(|error: ObjectKeyError| Error::Config { what: error.to_string() })
}

/// The engine of a page, and what its key begins with: `ENGINE/DIGEST/`. `None` for keys of another form.
fn prefix_of(key: &ObjectKey) -> Option<(&str, &str)> {
    let (engine, rest) = key.as_str().split_once('/')?;
    let (digest, _) = rest.split_once('/')?;
    let is_digest = digest.len() == DIGEST_DIGITS && digest.bytes().all(|digit| digit.is_ascii_hexdigit());
    let prefix = key.as_str().get(..engine.len() + digest.len() + 2)?;
    is_digest.then_some((engine, prefix))
}

/// The fields that differ from those of the closest identity of the same place. Any client may store objects under the keys of
/// identities: those that are none count as if they were not there.
fn differences(identity: &[u8], registered: &[Vec<u8>]) -> Vec<FieldDifference> {
    let Ok(asked) = serde_json::from_slice::<Identity>(identity) else { return Vec::new() };
    registered
        .iter()
        .filter_map(|other| serde_json::from_slice::<Identity>(other).ok())
        .filter(|other| other.place == asked.place)
        .map(|other| differences_of(&asked, &other))
        .min_by_key(Vec::len)
        .unwrap_or_default()
}

fn differences_of(asked: &Identity, stored: &Identity) -> Vec<FieldDifference> {
    let value = |of: &Identity, name: &str| {
        of.fields.iter().find(|field| field.0 == name).map(|field| text(&field.1))
    };
    let only_stored = stored.fields.iter().filter(|field| value(asked, &field.0).is_none());
    let names = asked.fields.iter().chain(only_stored).map(|field| &field.0);
    names
        .filter_map(|name| {
            let (here, there) = (value(asked, name), value(stored, name));
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
            (here != there).then(|| FieldDifference {
                field: name.clone(),
                asked: or_none(here),
                stored: or_none(there),
            })
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(place: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        serde_json::json!({ "place": [place], "fields": fields }).to_string().into_bytes()
    }

    #[test]
    fn an_engine_is_compared_with_the_closest_one_of_its_place() {
        let asked = identity("kv", &[("model", "m"), ("dtype", "fp8")]);
        let far = identity("kv", &[("model", "n"), ("dtype", "fp16")]);
        let close = identity("kv", &[("model", "m"), ("dtype", "bf16"), ("page", "16")]);
        let elsewhere = identity("draft", &[("model", "m"), ("dtype", "fp4")]);
        let junk =
            [&b"x"[..], b"[]", b"{}", b"{\"fields\": [1], \"place\": [0]}", b"\xff"].map(<[u8]>::to_vec);
        let mut registered = [vec![elsewhere, far], junk.to_vec()].concat();
        let found = differences(&asked, &registered);
        assert_eq!(found.iter().map(|each| each.field.as_str()).collect::<Vec<_>>(), ["model", "dtype"]);
        registered.push(identity("kv", &[("model", "m"), ("dtype", "fp8"), ("page", "16")]));
        let difference = |field: &str, asked: &str, stored: &str| FieldDifference {
            field: field.to_owned(),
            asked: asked.to_owned(),
            stored: stored.to_owned(),
        };
        assert_eq!(differences(&asked, &registered), [difference("page", "none", "16")]);
        assert_eq!(
            differences(&asked, &[close]),
            [difference("dtype", "fp8", "bf16"), difference("page", "none", "16")]
        );
        registered.push(asked.clone());
        assert_eq!(differences(&asked, &registered), []);
        assert_eq!(differences(b"x", &registered), []);
    }

    #[test]
    fn only_keys_of_pages_have_an_identity() {
        let digest = "0123456789abcdef".repeat(2);
        let key = |text: &str| text.parse::<ObjectKey>().expect("a key");
        let page = key(&format!("sglang/{digest}/0.1/page"));
        assert_eq!(prefix_of(&page), Some(("sglang", format!("sglang/{digest}/").as_str())));
        for other in ["page/7", "sglang/identities/0", &format!("sglang/{digest}"), &format!("{digest}/é")] {
            assert_eq!(prefix_of(&key(other)), None, "{other}");
        }
    }
}
