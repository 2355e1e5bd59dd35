//! Profiles of models, by the hash of their bytes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use kvasir_api::{MEDIA_PROFILE, ProfileInfo, ProfileList, routes};
use kvasir_codec::{Profile, ProfileError};
use kvasir_types::{ModelId, ModelSpec, ProfileHash};
use reqwest::{Method, header::CONTENT_TYPE};

use super::{Client, body, upload_pacer::transfer_time_max};
use crate::{
    Error,
    limits::{PROFILE_BYTES_MAX, PROFILE_ELEMENT_MACS_MAX, PROFILE_TABLE_BYTES_MAX, PROFILES_REFUSED_MAX},
};

/// Profiles that cannot be used, and why. Their bytes are what they are named by, so that never changes.
#[derive(Debug, Default)]
pub(super) struct RefusedProfiles(Mutex<BTreeMap<(ModelId, ProfileHash), ProfileError>>);

impl RefusedProfiles {
    fn reasons(&self) -> MutexGuard<'_, BTreeMap<(ModelId, ProfileHash), ProfileError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, profile: (ModelId, ProfileHash), reason: ProfileError) {
        let mut reasons = self.reasons();
        if reasons.len() >= PROFILES_REFUSED_MAX && !reasons.contains_key(&profile) {
            reasons.pop_first();
        }
        reasons.insert(profile, reason);
    }
}

impl Client {
    /// Stores a profile under its hash.
    ///
    /// # Errors
    /// `unknown_model`, `invalid_profile`.
    pub async fn put_profile(
        &self,
        model_id: &ModelId,
        profile: impl Into<Bytes>,
    ) -> Result<ProfileHash, Error> {
        let profile = profile.into();
        let hash = ProfileHash::of(&profile);
        let request = self.request(Method::PUT, &routes::profile(model_id, &hash));
        let request = request
            .header(CONTENT_TYPE, MEDIA_PROFILE)
            .timeout(transfer_time_max(profile.len()))
            .body(profile);
        self.send(request).await?;
        Ok(hash)
    }

    /// A profile's bytes, checked against its hash.
    ///
    /// # Errors
    /// `unknown_profile`; [`Error::Protocol`] if the bytes do not match the hash.
    pub async fn get_profile(&self, model_id: &ModelId, hash: &ProfileHash) -> Result<Vec<u8>, Error> {
        self.get_profile_within(model_id, hash, PROFILE_BYTES_MAX).await
    }

    /// Like [`get_profile`](Self::get_profile); [`Error::Profile`] if it has more bytes.
    pub(crate) async fn get_profile_within(
        &self,
        model_id: &ModelId,
        hash: &ProfileHash,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Error> {
        let response = self.send(self.request(Method::GET, &routes::profile(model_id, hash))).await?;
        let bytes = body::read_within(response, bytes_max).await?;
        let bytes = bytes.ok_or_else(|| too_many_bytes(bytes_max))?;
        if ProfileHash::of(&bytes) != *hash {
            return Err(Error::protocol(format!("the bytes do not match profile {hash}")));
        }
        Ok(bytes)
    }

    /// A profile of the model, by hash. Whoever may publish one decides what others take over, so what it may cost them is
    /// bounded: its bytes before they are read, its bases before they are unpacked. One that was refused is not asked for again.
    ///
    /// # Errors
    /// Those of [`get_profile`](Self::get_profile); [`Error::Profile`] if it is not valid, larger, or takes longer to decode
    /// with.
    pub async fn profile(&self, spec: &ModelSpec, hash: &ProfileHash) -> Result<Profile, Error> {
        let name = (spec.model_id(), *hash);
        let refused = self.refused_profiles.reasons().get(&name).cloned();
        if let Some(reason) = refused {
            return Err(reason.into());
        }
        let (macs_max, bytes_max) = bounds(spec);
        let bytes = self.get_profile_within(&name.0, hash, bytes_max).await;
        let profile = bytes.and_then(|bytes| Ok(Profile::from_bytes_within(&bytes, macs_max as u64)?));
        if let Err(Error::Profile(reason)) = &profile {
            self.refused_profiles.remember(name, reason.clone());
        }
        profile
    }

    /// As [`profile`](Self::profile), of one in a list, which says its size.
    pub(crate) async fn listed_profile(
        &self,
        spec: &ModelSpec,
        listed: &ProfileInfo,
    ) -> Result<Profile, Error> {
        let (_, bytes_max) = bounds(spec);
        if listed.bytes > bytes_max as u64 {
            return Err(too_many_bytes(bytes_max).into());
        }
        self.profile(spec, &listed.profile_hash).await
    }

    /// The profiles of a model.
    ///
    /// # Errors
    /// `unknown_model`.
    pub async fn list_profiles(&self, model_id: &ModelId) -> Result<ProfileList, Error> {
        self.json(self.request(Method::GET, &routes::profiles(model_id))).await
    }
}

/// Most multiply-adds for a token, and most bytes, of a profile that somebody else made.
fn bounds(spec: &ModelSpec) -> (usize, usize) {
    /// Of an entry in f16, for decoders and for encoders.
    const ENTRY_BYTES: usize = 4;
    let macs = spec.elements_per_token().saturating_mul(PROFILE_ELEMENT_MACS_MAX);
    let bytes = macs.saturating_mul(ENTRY_BYTES).saturating_add(PROFILE_TABLE_BYTES_MAX);
    (macs, bytes.min(PROFILE_BYTES_MAX))
}

fn too_many_bytes(bytes_max: usize) -> ProfileError {
    ProfileError::TooMuch { what: "bytes", most: bytes_max as u64 }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::rest::ClientConfig;

    #[tokio::test]
    async fn a_profile_of_too_many_bytes_is_passed_over_where_the_answer_has_no_length_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = Client::new(url, ClientConfig::default()).unwrap();
        let (model, profile) = (ModelId::from([1; 32]), [7u8; 1_000]);
        let answers = async {
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.read_buf(&mut Vec::with_capacity(1 << 16)).await.unwrap();
                // The body ends with the connection.
                let answer = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &profile].concat();
                stream.write_all(&answer).await.unwrap();
            }
        };
        let hash = ProfileHash::of(&profile);
        let reads = async {
            let read = client.get_profile_within(&model, &hash, 1_000).await.unwrap();
            assert_eq!(read, profile);
            let refused = client.get_profile_within(&model, &hash, 999).await.unwrap_err();
            assert!(matches!(&refused, Error::Profile(why) if *why == too_many_bytes(999)), "{refused}");
        };
        tokio::select! {
            () = reads => {}
            () = answers => {}
        }
    }

    #[test]
    fn refused_profiles_are_remembered_up_to_a_number() {
        let refused = RefusedProfiles::default();
        for number in 0..2 * PROFILES_REFUSED_MAX {
            let hash = ProfileHash::of(&number.to_le_bytes());
            refused.remember((ModelId::from([1; 32]), hash), ProfileError::Magic);
        }
        assert_eq!(refused.reasons().len(), PROFILES_REFUSED_MAX);
    }
}
