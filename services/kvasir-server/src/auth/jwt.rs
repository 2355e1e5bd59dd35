//! JSON Web Tokens: signature by a key of the JWKS file, issuer, audience, times; tenant and role from claims.

use std::{collections::HashMap, fmt, sync::Arc};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header,
    jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use kvasir_api::Role;
use kvasir_store::cache::BoundedMap;
use kvasir_types::Name;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::Value;

use super::principal::Principal;
use crate::{config::JwtConfig, limits, reload::ReloadableFiles};

/// Checks tokens of one issuer.
#[derive(Debug)]
pub(super) struct Verifier {
    keys: ReloadableFiles<VerificationKeys>,
    issuer: String,
    audience: String,
    tenant_claim: String,
    role_claim: String,
    /// Hashes of tokens that were valid.
    accepted: BoundedMap<[u8; 32], ()>,
}

/// Public keys by id, each with the only algorithm it may be used with.
struct VerificationKeys(HashMap<String, (Algorithm, DecodingKey)>);

impl fmt::Debug for VerificationKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The members of a token's header or claims. A duplicate name is an error: two parsers would disagree on it.
struct DistinctMembers(HashMap<String, Value>);

impl DistinctMembers {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }
}

impl<'de> Deserialize<'de> for DistinctMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = DistinctMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with distinct members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctMembers, A::Error> {
        let mut members = HashMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        Ok(DistinctMembers(members))
    }
}

impl Verifier {
    pub(super) fn open(config: &JwtConfig) -> Result<Self, String> {
        Ok(Self {
            keys: ReloadableFiles::open(&[&config.jwks_file], |files| VerificationKeys::parse(&files[0]))?,
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            tenant_claim: config.tenant_claim.clone(),
            role_claim: config.role_claim.clone(),
            accepted: BoundedMap::new(limits::JWT_ACCEPTED_MAX, None),
        })
    }

    /// Whether the token was valid before: it is no guess.
    pub(super) fn was_accepted(&self, token: &str) -> bool {
        self.accepted.contains(blake3::hash(token.as_bytes()).as_bytes())
    }

    pub(super) fn reload(&self) {
        self.keys.reload();
    }

    pub(super) fn has_rejected_files(&self) -> bool {
        self.keys.is_rejected()
    }

    /// The principal that the token names, if the token is valid.
    pub(super) fn principal(&self, token: &str) -> Option<Principal> {
        let header = decode_header(token).ok()?;
        // A token's critical extensions must be understood, and none are supported (RFC 7515, 4.1.11).
        if header_members(token)?.0.contains_key("crit") {
            return None;
        }
        let keys = self.keys.get();
        // Use the key's algorithm, never the one that the token names.
        let (algorithm, key) = keys.0.get(&header.kid?)?;
        let mut validation = Validation::new(*algorithm);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        validation.leeway = limits::JWT_LEEWAY.as_secs();
        let claims = decode::<DistinctMembers>(token, key, &validation).ok()?.claims;
        let tenant: Name = claims.text(&self.tenant_claim)?.parse().ok()?;
        let role: Role = claims.text(&self.role_claim)?.parse().ok()?;
        let subject = claims.text("sub").unwrap_or("jwt");
        let mut line: String = subject.chars().filter(|c| !c.is_control()).collect();
        line.truncate(line.floor_char_boundary(limits::CREDENTIAL_NAME_BYTES_MAX));
        self.accepted.insert(*blake3::hash(token.as_bytes()).as_bytes(), ());
        Some(Principal { tenant, role, credential: Arc::from(line) })
    }
}

fn header_members(token: &str) -> Option<DistinctMembers> {
    let (header, _) = token.split_once('.')?;
    serde_json::from_slice(&BASE64URL_NOPAD.decode(header.as_bytes()).ok()?).ok()
}

impl VerificationKeys {
    fn parse(text: &[u8]) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_slice(text).map_err(|e| format!("is not a JWKS: {e}"))?;
        if set.keys.len() > limits::JWKS_KEYS_MAX {
            return Err(format!("has more than {} keys", limits::JWKS_KEYS_MAX));
        }
        let mut keys = HashMap::new();
        // Issuers publish keys to which others encrypt next to those that they sign with.
        let is_for_signatures = |jwk: &Jwk| jwk.common.public_key_use != Some(PublicKeyUse::Encryption);
        for (n, jwk) in set.keys.iter().enumerate().filter(|(_, jwk)| is_for_signatures(jwk)) {
            let id = jwk.common.key_id.clone().ok_or_else(|| format!("key {n} has no kid"))?;
            let algorithm = match jwk.common.key_algorithm {
                Some(KeyAlgorithm::RS256) => Algorithm::RS256,
                Some(KeyAlgorithm::RS384) => Algorithm::RS384,
                Some(KeyAlgorithm::RS512) => Algorithm::RS512,
                Some(KeyAlgorithm::PS256) => Algorithm::PS256,
                Some(KeyAlgorithm::ES256) => Algorithm::ES256,
                Some(KeyAlgorithm::ES384) => Algorithm::ES384,
                Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
                // Shared secrets do not belong in a file of public keys.
                other => {
                    return Err(format!(
                        "key {id:?}: alg {other:?} is none of RS256 RS384 RS512 PS256 ES256 ES384 EdDSA"
                    ));
                }
            };
            let key = DecodingKey::from_jwk(jwk).map_err(|e| format!("key {id:?}: {e}"))?;
            if keys.insert(id.clone(), (algorithm, key)).is_some() {
                return Err(format!("key {id:?} occurs twice"));
            }
        }
        if keys.is_empty() { Err("contains no key".to_owned()) } else { Ok(Self(keys)) }
    }
}

/// A token, or a file of keys: no key here signed a token, so every token must be rejected.
#[cfg(any(test, fuzzing))]
pub fn fuzz(data: &[u8]) {
    // The public key of RFC 8037, A.2.
    const KEYS: &str = r#"{"keys":[
        {"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    static VERIFIER: std::sync::LazyLock<Verifier> = std::sync::LazyLock::new(|| Verifier {
        keys: ReloadableFiles::open(&[], |_| VerificationKeys::parse(KEYS.as_bytes())).expect("keys"),
        issuer: "i".to_owned(),
        audience: "a".to_owned(),
        tenant_claim: "tenant".to_owned(),
        role_claim: "role".to_owned(),
        accepted: BoundedMap::new(1, None),
    });
    let _ = VerificationKeys::parse(data);
    let Ok(token) = std::str::from_utf8(data) else { return };
    assert!(VERIFIER.principal(token).is_none(), "it is not signed");
    // Code behind the signature check.
    let _ = serde_json::from_slice::<DistinctMembers>(data);
}
