//! The builder of a connection.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
};

use kvasir_codec::Profile;
use kvasir_types::{CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_MAX, CHUNK_TOKENS_STEP, ModelSpec};
use tokio::runtime::Handle;

use super::{Kvasir, Shared, lookup_log::LookupLog};
use crate::{
    Error,
    fetcher::RecomputeModel,
    load::LearnedCosts,
    model::{Binding, Codec},
    options::QualityFloor,
    rest::{BearerToken, Client, ClientConfig},
    save::{QueueConfig, SaveQueue},
};

/// Describes a [`Kvasir`]; [`connect`](Self::connect) opens it. Only [`model`](Self::model) is required.
#[derive(Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct Builder {
    url: String,
    model: Option<Arc<ModelSpec>>,
    profile: Option<Arc<Profile>>,
    namespace: String,
    token: Option<Token>,
    rest: ClientConfig,
    quality: QualityFloor,
    chunk_tokens: usize,
    direct_reads: bool,
    recompute: RecomputeModel,
    saves: QueueConfig,
}

/// A credential as given; its text never appears in logs.
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn config_error(what: impl Into<String>) -> Error {
    Error::Config { what: what.into() }
}

impl Builder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            model: None,
            profile: None,
            namespace: "default".to_owned(),
            token: None,
            rest: ClientConfig::default(),
            quality: QualityFloor::default(),
            chunk_tokens: CHUNK_TOKENS_DEFAULT,
            direct_reads: false,
            // Until the first prefill is observed: a 7 B model at 60 TFLOPS.
            recompute: RecomputeModel::from_flops(7.2e9, 32, 4096, 6e13),
            saves: QueueConfig::default(),
        }
    }

    /// The model. Without [`profile`](Self::profile), caches are encoded with the profile in force at the
    /// service: the newest that is at least five minutes old. If the service has none, the client makes one
    /// from the first cache saved.
    pub fn model(mut self, spec: impl Into<Arc<ModelSpec>>) -> Self {
        self.model = Some(spec.into());
        self
    }

    /// The profile to encode caches with.
    pub fn profile(mut self, profile: impl Into<Arc<Profile>>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Namespace: caches of different namespaces never match. Default: `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// A token of the service, or a JSON Web Token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// Timeouts, certificates and the other settings of HTTP.
    pub fn rest(mut self, config: ClientConfig) -> Self {
        self.rest = config;
        self
    }

    /// The lowest quality that loads may bring. Default: [`Quality::Transparent`](kvasir_types::Quality), also
    /// where a deadline is missed for it. [`QualityFloor::Adaptive`] is whatever the deadline allows. Clients of different
    /// qualities should have different namespaces, see [`Session::below_floor_tokens`](crate::Session::below_floor_tokens).
    /// For [`Quality::Exact`](kvasir_types::Quality) a given profile needs an exact level, and so has the one that
    /// the client takes or makes.
    pub fn quality(mut self, quality: impl Into<QualityFloor>) -> Self {
        self.quality = quality.into();
        self
    }

    /// Tokens of a stored chunk: a multiple of 256 up to 16,384. Default: 1,536.
    pub const fn chunk_tokens(mut self, tokens: usize) -> Self {
        self.chunk_tokens = tokens;
        self
    }

    /// Reads objects directly from the store if the service can presign URLs; otherwise, or if a direct read
    /// fails, through the service. Direct reads bypass the service's hot tier, so use them for stores that
    /// are closer or have more bandwidth than the service.
    pub const fn direct_reads(mut self, direct: bool) -> Self {
        self.direct_reads = direct;
        self
    }

    /// The engine's initial prefill times; loads and [`Kvasir::observe_prefill`] refine them. Default: a 7 B
    /// model at 60 TFLOPS.
    pub fn recompute_model(mut self, recompute: RecomputeModel) -> Self {
        self.recompute = recompute;
        self
    }

    /// Admission and limits of the save queue.
    pub fn save_queue(mut self, config: QueueConfig) -> Self {
        self.saves = config;
        self
    }

    /// Connects: registers the model and fetches the namespace's root.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid description, and for quality exact with a profile that has no exact
    /// level or a cache whose type cannot have one; [`Error::Profile`] for a profile of another model,
    /// [`Error::Spec`] for an invalid model spec; those of [`Client::register_model`] and
    /// [`Client::namespace_root`], and for quality exact of [`Client::list_profiles`] and
    /// [`Client::get_profile`].
    pub async fn connect(self) -> Result<Kvasir, Error> {
        let spec =
            self.model.ok_or_else(|| config_error("no model is given: call `model` before `connect`"))?;
        let tokens = self.chunk_tokens;
        if tokens == 0 || tokens > CHUNK_TOKENS_MAX || !tokens.is_multiple_of(CHUNK_TOKENS_STEP) {
            return Err(config_error(format!(
                "chunks cannot have {tokens} tokens: use a multiple of {CHUNK_TOKENS_STEP} up to {CHUNK_TOKENS_MAX}"
            )));
        }
        let url = self.url.parse().map_err(|error| {
            config_error(format!("{} is not a service address ({error}): use http://host:port", self.url))
        })?;
        let namespace =
            self.namespace.parse().map_err(|error| config_error(format!("namespace: {error}")))?;
        let mut rest = self.rest;
        if let Some(Token(token)) = &self.token {
            rest.token = Some(BearerToken::new(token)?);
        }
        let client = Client::new(url, rest)?;
        client.learn_members().await;
        let codec = Arc::new(Codec::new(spec, self.profile, self.quality.is_exact())?);
        if let (QualityFloor::Named(floor), Some(given)) = (self.quality, codec.writer())
            && !given.profile().is_measured()
        {
            tracing::warn!(
                profile = %given.profile().hash(),
                "chunks of the given profile do not record their errors: with quality {floor}, none of them is found. \
                 Train the profile again, or connect with QualityFloor::Adaptive (in Python quality=None)"
            );
        }
        let own = Arc::new(Binding::open(&client, codec, namespace).await?);
        let runtime = Handle::current();
        Ok(Kvasir {
            shared: Arc::new(Shared {
                saves: SaveQueue::new(self.saves, tokens, &runtime),
                client,
                own,
                others: Mutex::new(VecDeque::new()),
                direct_reads: self.direct_reads,
                quality: self.quality,
                learned: Arc::new(LearnedCosts::new(self.recompute)),
                lookup_log: LookupLog::default(),
                runtime,
            }),
        })
    }
}
