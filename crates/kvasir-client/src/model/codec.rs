//! One model's writer, and its decoders by profile.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use kvasir_codec::{
    ChunkDecoder, CpuDecoder, Profile,
    authoring::{ProfileParts, float_of},
};
use kvasir_types::{ModelId, ModelSpec, ProfileHash};
use tokio::runtime::Handle;

use super::{
    decoders::{DecoderState, Decoders},
    writer::{self, Sample, Unsuitable, Writer},
};
use crate::{
    Error,
    limits::{PROFILE_RETRY, PROFILES_MAX},
    rest::Client,
};

/// Writer and decoders of a model, with or without an adapter.
pub(crate) struct Codec {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) model_id: ModelId,
    /// Whether to encode only with profiles that have an exact level: the client loads nothing else.
    exact: bool,
    unsuitable: Unsuitable,
    /// `None` before the first save of a model with an automatic profile.
    writer: Mutex<Option<Arc<Writer>>>,
    /// For chunks that the writer's profile does not fit; `None` before the first.
    starter: Mutex<Option<Arc<Writer>>>,
    /// Profiles that cannot be the `starter`'s.
    no_starters: Unsuitable,
    /// Held while a profile is fetched or made.
    choosing: tokio::sync::Mutex<()>,
    decoders: Mutex<Decoders>,
}

impl Codec {
    /// The codec of a model with a given or an automatic profile, one with an exact level if `exact`.
    ///
    /// # Errors
    /// [`Error::Profile`] if the profile is of another model, [`Error::Config`] if it needs an exact level and
    /// has none or does not measure chunks, or the cache's type cannot have one, [`Error::Spec`] for an invalid
    /// model spec.
    pub(crate) fn new(
        spec: Arc<ModelSpec>,
        profile: Option<Arc<Profile>>,
        exact: bool,
    ) -> Result<Self, Error> {
        spec.validate()?;
        if exact && float_of(spec.kv_dtype).is_none() {
            let what = format!(
                "quality exact is for caches of bf16, f16 and fp8_e4m3, and this model's are of {}: ask for quality transparent",
                serde_json::json!(spec.kv_dtype)
            );
            return Err(Error::Config { what });
        }
        let codec = Self {
            model_id: spec.model_id(),
            spec,
            exact,
            unsuitable: Unsuitable::default(),
            writer: Mutex::default(),
            starter: Mutex::default(),
            no_starters: Unsuitable::default(),
            choosing: tokio::sync::Mutex::default(),
            decoders: Mutex::default(),
        };
        if let Some(profile) = profile {
            let given = Writer::given(&codec.spec, profile)?;
            if exact && !writer::is_exact(given.profile()) {
                let what = "quality exact needs a profile with an exact level whose chunks record their errors, and the given \
                            one is none: train one (`kvasir profile train --recipe exact-only`), give none, or ask for \
                            quality transparent";
                return Err(Error::Config { what: what.to_owned() });
            }
            codec.take(given)?;
        }
        Ok(codec)
    }

    /// If only exact levels will do, finds a profile of the service to encode them with, which serves the model's
    /// adapters, too.
    ///
    /// # Errors
    /// Those of [`Client::list_profiles`] and [`Client::get_profile`].
    pub(crate) async fn find_exact(&self, client: &Client) -> Result<(), Error> {
        if self.exact
            && self.writer().is_none()
            && let Some(found) = Writer::in_force(client, &self.spec, None, true, &self.unsuitable).await?
        {
            self.take(found)?;
        }
        Ok(())
    }

    /// The codec of the model with an adapter. A given profile is used for it too, under another hash because
    /// it names the model; likewise a chosen one if only exact levels will do, which are exact for any cache, but
    /// for a first one: the service may have a smaller one of the adapter.
    pub(crate) fn with_adapter(&self, adapter: &str) -> Result<Self, Error> {
        let spec = ModelSpec { adapter: Some(adapter.to_owned()), ..ModelSpec::clone(&self.spec) };
        let model_id = spec.model_id();
        let renamed = |given: &Arc<Profile>| Profile::assemble(ProfileParts { model_id, ..given.parts() });
        let own = self.writer();
        let given = own.as_ref().and_then(|own| {
            let is_exact = self.exact && !writer::is_first(own.profile());
            own.given_profile().or_else(|| is_exact.then(|| own.profile()))
        });
        let profile = given.map(renamed).transpose()?.map(Arc::new);
        Self::new(Arc::new(spec), profile, self.exact)
    }

    /// The writer for chunks, if it is already known.
    pub(crate) fn writer(&self) -> Option<Arc<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The writer for chunks: found at the service, or made from a sample. Its profile is published at the
    /// service.
    pub(crate) async fn writer_for(&self, client: &Client, sample: Sample<'_>) -> Result<Arc<Writer>, Error> {
        let settled = || self.writer().filter(|writer| !writer.is_stale());
        if let Some(writer) = settled() {
            writer.publish(client).await?;
            return Ok(writer);
        }
        let _choosing = self.choosing.lock().await;
        if let Some(writer) = settled() {
            return Ok(writer);
        }
        let current = self.writer();
        let (current, unsuitable) = (current.as_deref(), &self.unsuitable);
        self.take(Writer::choose(client, &self.spec, current, self.exact, unsuitable, sample).await?)
    }

    /// The writer for a chunk that the writer's profile does not fit.
    pub(crate) async fn starter_for(
        &self,
        client: &Client,
        sample: Sample<'_>,
    ) -> Result<Arc<Writer>, Error> {
        let known = || self.starter.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known() {
            return Ok(known);
        }
        let _choosing = self.choosing.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let found = Arc::new(Writer::starter(client, &self.spec, &self.no_starters, sample).await?);
        self.prepare_decoder(&found)?;
        *self.starter.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Uses `writer` from now on.
    fn take(&self, writer: Writer) -> Result<Arc<Writer>, Error> {
        let writer = Arc::new(writer);
        self.prepare_decoder(&writer)?;
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&writer));
        Ok(writer)
    }

    fn prepare_decoder(&self, writer: &Writer) -> Result<(), Error> {
        let hash = writer.profile().hash();
        if self.decoder(&hash).is_none() {
            let decoder = CpuDecoder::new(Arc::clone(&self.spec), Arc::clone(writer.profile()))?;
            self.with_decoders(|decoders| decoders.insert(hash, DecoderState::Ready(Arc::new(decoder))));
        }
        Ok(())
    }

    /// Default for the largest predicted KL beneath stored KV, if the queue's configuration sets none:
    /// twice the finest level's. `None` if that is unknown.
    pub(crate) fn kl_beneath_max(&self) -> Option<f64> {
        let own = self.writer().and_then(|writer| self.decoder(&writer.profile().hash()));
        let own = own.and_then(|decoder| decoder.level_kl());
        own.and_then(|kl| kl.last().map(|finest| 2.0 * finest))
    }

    fn with_decoders<T>(&self, f: impl FnOnce(&mut Decoders) -> T) -> T {
        f(&mut self.decoders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The decoder of a profile, if it is present.
    pub(crate) fn decoder(&self, profile: &ProfileHash) -> Option<Arc<dyn ChunkDecoder>> {
        self.with_decoders(|decoders| match decoders.get(profile) {
            Some(DecoderState::Ready(decoder)) => Some(Arc::clone(decoder)),
            Some(DecoderState::Fetching | DecoderState::Failed(_)) | None => None,
        })
    }

    /// Fetches a profile in the background, so that the next lookup can use chunks stored with it.
    pub(crate) fn fetch_in_background(
        self: &Arc<Self>,
        client: &Client,
        profile: ProfileHash,
        runtime: &Handle,
    ) {
        let begins = self.with_decoders(|decoders| {
            let is_wanted = match decoders.get(&profile) {
                None => true,
                Some(DecoderState::Failed(at)) => at.elapsed() >= PROFILE_RETRY,
                Some(DecoderState::Ready(_) | DecoderState::Fetching) => false,
            };
            is_wanted && decoders.insert(profile, DecoderState::Fetching)
        });
        if begins {
            let (this, client) = (Arc::clone(self), client.clone());
            runtime.spawn(async move {
                let state = DecoderState::of(profile, this.fetch(&client, profile).await);
                this.with_decoders(|decoders| decoders.insert(profile, state));
            });
        }
    }

    /// The decoder of a profile, fetched if necessary; `None` if it is not available, and for
    /// [`PROFILE_RETRY`] after that.
    pub(crate) async fn decoder_for(
        &self,
        client: &Client,
        profile: ProfileHash,
    ) -> Option<Arc<dyn ChunkDecoder>> {
        // Concurrent callers wait for the one that fetches.
        let _choosing = self.choosing.lock().await;
        let known = self.with_decoders(|decoders| match decoders.get(&profile) {
            Some(DecoderState::Ready(decoder)) => Some(Some(Arc::clone(decoder))),
            Some(DecoderState::Failed(at)) if at.elapsed() < PROFILE_RETRY => Some(None),
            Some(DecoderState::Failed(_) | DecoderState::Fetching) | None => None,
        });
        if let Some(known) = known {
            return known;
        }
        let state = DecoderState::of(profile, self.fetch(client, profile).await);
        let decoder = match &state {
            DecoderState::Ready(decoder) => Some(Arc::clone(decoder)),
            DecoderState::Fetching | DecoderState::Failed(_) => None,
        };
        self.with_decoders(|decoders| decoders.insert(profile, state));
        decoder
    }

    async fn fetch(&self, client: &Client, profile: ProfileHash) -> Result<Arc<dyn ChunkDecoder>, Error> {
        self.decoder_of(client.profile(&self.spec, &profile).await?)
    }

    fn decoder_of(&self, profile: Profile) -> Result<Arc<dyn ChunkDecoder>, Error> {
        Ok(Arc::new(CpuDecoder::new(Arc::clone(&self.spec), Arc::new(profile))?))
    }

    /// Fetches the model's profiles that the service has and this client lacks, at most [`PROFILES_MAX`].
    /// Skips unusable ones.
    pub(crate) async fn preload(&self, client: &Client) -> Result<(), Error> {
        let listed = client.list_profiles(&self.model_id).await?.profiles;
        for info in writer::by_preference(listed, SystemTime::now()).into_iter().take(PROFILES_MAX) {
            let profile = info.profile_hash;
            if self.decoder(&profile).is_some() {
                continue;
            }
            let fetched = client.listed_profile(&self.spec, &info).await;
            let fetched = match fetched.and_then(|profile| self.decoder_of(profile)) {
                Err(error) if !matches!(error, Error::Profile(_)) => return Err(error),
                fetched => fetched,
            };
            let state = DecoderState::of(profile, fetched);
            self.with_decoders(|decoders| decoders.insert(profile, state));
        }
        Ok(())
    }
}
