//! One model's encoder, and its decoders by profile.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, CpuDecoder, CpuEncoder, Profile, ProfileError, authoring::ProfileParts,
};
use kvasir_types::{ModelId, ModelSpec, ProfileHash};
use tokio::{runtime::Handle, time::Instant};

use crate::{
    Error,
    limits::{PROFILE_RETRY, PROFILES_MAX},
    rest::Client,
};

/// Whether chunks of a profile can be decoded.
enum DecoderState {
    Ready(Arc<dyn ChunkDecoder>),
    Fetching,
    /// Could not be fetched, or is not usable; asked for again after [`PROFILE_RETRY`].
    Failed(Instant),
}

/// Encoder and decoders of a model, with or without an adapter.
pub(crate) struct Codec {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) model_id: ModelId,
    profile: Arc<Profile>,
    encoder: Arc<dyn ChunkEncoder>,
    decoders: Mutex<BTreeMap<ProfileHash, DecoderState>>,
    /// Whether the service has the profile that chunks are encoded with.
    published: AtomicBool,
}

impl Codec {
    /// # Errors
    /// [`ProfileError`] when the profile is of another model.
    pub(crate) fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        let encoder = Arc::new(CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?);
        let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
        let own = (encoder.profile_hash(), DecoderState::Ready(Arc::new(decoder)));
        let (model_id, decoders) = (spec.model_id(), Mutex::new(BTreeMap::from([own])));
        Ok(Self { spec, model_id, profile, encoder, decoders, published: AtomicBool::new(false) })
    }

    /// The codec of the model with an adapter: with the same profile, which is another file because it names the model.
    pub(crate) fn with_adapter(&self, adapter: &str) -> Result<Self, ProfileError> {
        let spec = ModelSpec { adapter: Some(adapter.to_owned()), ..ModelSpec::clone(&self.spec) };
        let parts = ProfileParts { model_id: spec.model_id(), ..self.profile.parts() };
        Self::new(Arc::new(spec), Arc::new(Profile::assemble(parts)?))
    }

    pub(crate) const fn encoder(&self) -> &Arc<dyn ChunkEncoder> {
        &self.encoder
    }

    /// Most predicted KL beneath what is stored, unless the queue's admission says otherwise: twice the finest level's.
    pub(crate) fn kl_beneath_max(&self) -> f64 {
        let own = self.decoder(&self.encoder.profile_hash()).and_then(|decoder| decoder.level_kl());
        own.and_then(|kl| kl.last().map(|finest| 2.0 * finest)).unwrap_or(f64::INFINITY)
    }

    fn with_decoders<T>(&self, f: impl FnOnce(&mut BTreeMap<ProfileHash, DecoderState>) -> T) -> T {
        f(&mut self.decoders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The decoder of a profile, if it is there.
    pub(crate) fn decoder(&self, profile: &ProfileHash) -> Option<Arc<dyn ChunkDecoder>> {
        self.with_decoders(|decoders| match decoders.get(profile) {
            Some(DecoderState::Ready(decoder)) => Some(Arc::clone(decoder)),
            Some(DecoderState::Fetching | DecoderState::Failed(_)) | None => None,
        })
    }

    /// Fetches a profile in the background, so that the next lookup can use what is stored with it.
    pub(crate) fn fetch_in_background(
        self: &Arc<Self>,
        client: &Client,
        profile: ProfileHash,
        runtime: &Handle,
    ) {
        let begins = self.with_decoders(|decoders| {
            let wanted = match decoders.get(&profile) {
                None => decoders.len() < PROFILES_MAX,
                Some(DecoderState::Failed(at)) => at.elapsed() >= PROFILE_RETRY,
                Some(DecoderState::Ready(_) | DecoderState::Fetching) => false,
            };
            if wanted {
                decoders.insert(profile, DecoderState::Fetching);
            }
            wanted
        });
        if begins {
            let (this, client) = (Arc::clone(self), client.clone());
            runtime.spawn(async move {
                let fetched = this.fetch(&client, profile).await;
                let state = fetched.map_or_else(
                    |error| {
                        tracing::warn!(%error, %profile, "a profile could not be loaded: chunks encoded with it are misses");
                        DecoderState::Failed(Instant::now())
                    },
                    DecoderState::Ready,
                );
                this.with_decoders(|decoders| decoders.insert(profile, state));
            });
        }
    }

    async fn fetch(&self, client: &Client, profile: ProfileHash) -> Result<Arc<dyn ChunkDecoder>, Error> {
        let bytes = client.get_profile(&self.model_id, &profile).await?;
        let profile = Arc::new(Profile::from_bytes(&bytes)?);
        Ok(Arc::new(CpuDecoder::new(Arc::clone(&self.spec), profile)?))
    }

    /// Fetches the profiles of the model that the service has and this client has not, at most [`PROFILES_MAX`].
    pub(crate) async fn preload(&self, client: &Client) -> Result<(), Error> {
        let listed = client.list_profiles(&self.model_id).await?.profiles;
        for info in listed.into_iter().take(PROFILES_MAX) {
            if self.decoder(&info.profile_hash).is_none() {
                let decoder = self.fetch(client, info.profile_hash).await?;
                self.with_decoders(|decoders| {
                    decoders.insert(info.profile_hash, DecoderState::Ready(decoder))
                });
            }
        }
        Ok(())
    }

    /// Publishes the profile that chunks are encoded with, once.
    pub(crate) async fn publish(&self, client: &Client) -> Result<(), Error> {
        if !self.published.load(Ordering::Acquire) {
            client.put_profile(&self.model_id, self.profile.to_bytes()).await?;
            self.published.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Registers the model and publishes the profile again: the service has lost them.
    pub(crate) async fn publish_again(&self, client: &Client) -> Result<(), Error> {
        client.register_model(&self.spec).await?;
        self.published.store(false, Ordering::Release);
        self.publish(client).await
    }
}
