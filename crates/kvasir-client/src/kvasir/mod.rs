//! The connection that an engine holds.

mod builder;
mod lookup_log;
mod sample;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kvasir_codec::Profile;
use kvasir_types::{ModelId, ModelSpec, Name, TokenRange};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

pub use builder::Builder;
use lookup_log::LookupLog;
pub use sample::StoredKv;

use crate::{
    Error,
    limits::BINDINGS_MAX,
    load::{CostModels, LearnedCosts},
    model::{Binding, Codec},
    options::QualityFloor,
    rest::{Client, RequestClass},
    save::{QueueStats, SaveQueue},
};

/// A connection to a Kvasir service for one model. Open one per process, and a [`Session`](crate::Session)
/// per request. Cheap to clone, `Send + Sync`; clones share HTTP connections, the save queue, and the fitted
/// cost models.
///
/// Dropping the last clone drops saves that are still queued; call [`drain`](Self::drain) first to keep them.
#[derive(Clone)]
pub struct Kvasir {
    shared: Arc<Shared>,
}

/// Separates the caches of one model: an adapter, and a secret that keeps users apart.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct BindingKey {
    pub(crate) adapter: Option<String>,
    pub(crate) salt: Option<Vec<u8>>,
}

impl fmt::Debug for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let salt = self.salt.as_ref().map(|_| "***");
        f.debug_struct("BindingKey").field("adapter", &self.adapter).field("salt", &salt).finish()
    }
}

struct Shared {
    client: Client,
    own: Arc<Binding>,
    /// Bindings of other adapters and salts, most recently used first; at most [`BINDINGS_MAX`].
    others: Mutex<VecDeque<(BindingKey, Arc<Binding>)>>,
    direct_reads: bool,
    quality: QualityFloor,
    learned: Arc<LearnedCosts>,
    saves: SaveQueue,
    lookup_log: LookupLog,
    runtime: Handle,
}

impl fmt::Debug for Kvasir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kvasir")
            .field("model_id", &self.model_id())
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}

impl Kvasir {
    /// Describes a connection to the service at `url`, e.g. `http://127.0.0.1:7480`.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }

    /// Reports how long a prefill of `range`, over everything before it, took. Loads are compared with it.
    pub fn observe_prefill(&self, range: TokenRange, took: Duration) {
        self.shared.learned.observe_prefill(range, took);
    }

    /// Cost models as learned so far from loads and prefills.
    pub fn costs(&self) -> CostModels {
        self.shared.learned.models()
    }

    /// Fetches the model's profiles from the service, at most 16. Otherwise each is fetched in the background
    /// when a lookup first needs it, and that lookup ends before the chunks that need it.
    ///
    /// # Errors
    /// Those of [`Client::list_profiles`] and [`Client::get_profile`]. A profile that cannot be used is
    /// skipped.
    pub async fn preload_profiles(&self) -> Result<(), Error> {
        self.shared.own.codec.preload(&self.shared.client).await
    }

    /// Waits until every background save is stored or has failed. Call it before shutdown.
    pub async fn drain(&self) {
        self.shared.saves.drain().await;
    }

    /// Statistics of the save queue.
    pub fn saves(&self) -> QueueStats {
        self.shared.saves.stats()
    }

    /// The service's REST API.
    pub fn rest(&self) -> &Client {
        &self.shared.client
    }

    /// Layout of the model's KV.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.shared.own.codec.spec
    }

    /// The model.
    pub fn model_id(&self) -> ModelId {
        self.shared.own.codec.model_id
    }

    /// The profile to encode caches with; `None` before the first save if it is chosen automatically, but for
    /// one that the service has for quality exact.
    pub fn profile(&self) -> Option<Arc<Profile>> {
        self.shared.own.codec.writer().map(|writer| Arc::clone(writer.profile()))
    }

    /// The namespace.
    pub fn namespace(&self) -> &Name {
        &self.shared.own.namespace
    }

    pub(crate) fn lookup_log(&self) -> &LookupLog {
        &self.shared.lookup_log
    }

    pub(crate) fn client(&self, class: &RequestClass) -> Client {
        self.shared.client.for_request(class.clone())
    }

    pub(crate) fn direct_reads(&self) -> bool {
        self.shared.direct_reads
    }

    pub(crate) fn quality(&self) -> QualityFloor {
        self.shared.quality
    }

    pub(crate) fn learned(&self) -> &Arc<LearnedCosts> {
        &self.shared.learned
    }

    pub(crate) fn save_queue(&self) -> &SaveQueue {
        &self.shared.saves
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    fn with_others<T>(&self, f: impl FnOnce(&mut VecDeque<(BindingKey, Arc<Binding>)>) -> T) -> T {
        f(&mut self.shared.others.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The binding of an adapter and salt. The first use of each queries the service.
    pub(crate) async fn binding(&self, key: &BindingKey) -> Result<Arc<Binding>, Error> {
        if *key == BindingKey::default() {
            return Ok(Arc::clone(&self.shared.own));
        }
        if let Some(known) = self.known_binding(key) {
            return Ok(known);
        }
        let codec = self.codec_for(key.adapter.as_deref())?;
        let namespace = match &key.salt {
            Some(salt) => salted(&self.shared.own.namespace, salt)?,
            None => self.shared.own.namespace.clone(),
        };
        let mut opened = Binding::open(&self.shared.client, codec, namespace).await?;
        // Other sessions may have opened it in the meantime, or another one of its adapter.
        Ok(self.with_others(|others| {
            if let Some((_, known)) = others.iter().find(|(known, _)| known == key) {
                return Arc::clone(known);
            }
            if let Some(codec) = key.adapter.as_deref().and_then(|adapter| codec_of(others, adapter)) {
                opened.codec = codec;
            }
            let opened = Arc::new(opened);
            others.push_front((key.clone(), Arc::clone(&opened)));
            others.truncate(BINDINGS_MAX);
            opened
        }))
    }

    fn known_binding(&self, key: &BindingKey) -> Option<Arc<Binding>> {
        self.with_others(|others| {
            let at = others.iter().position(|(known, _)| known == key)?;
            let found = others.remove(at)?;
            let binding = Arc::clone(&found.1);
            others.push_front(found);
            Some(binding)
        })
    }

    /// Salts share the codec of their adapter.
    fn codec_for(&self, adapter: Option<&str>) -> Result<Arc<Codec>, Error> {
        let own = &self.shared.own.codec;
        let Some(adapter) = adapter else { return Ok(Arc::clone(own)) };
        let known = self.with_others(|others| codec_of(others, adapter));
        known.map_or_else(|| Ok(Arc::new(own.with_adapter(adapter)?)), Ok)
    }
}

/// The codec of an adapter, where a binding has it.
fn codec_of(bindings: &VecDeque<(BindingKey, Arc<Binding>)>, adapter: &str) -> Option<Arc<Codec>> {
    let of_adapter = |(key, _): &&(BindingKey, Arc<Binding>)| key.adapter.as_deref() == Some(adapter);
    bindings.iter().find(of_adapter).map(|(_, binding)| Arc::clone(&binding.codec))
}

/// The namespace of a salt. The service derives an unguessable root for it, as for every namespace.
fn salted(namespace: &Name, salt: &[u8]) -> Result<Name, Error> {
    let mut hash = Sha256::new_with_prefix(b"kvasir session salt\0");
    hash.update(salt);
    let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{namespace}.{digest}").parse().map_err(|error| Error::Config {
        what: format!("the namespace {namespace} is too long for sessions with a salt: {error}"),
    })
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use kvasir_api::ProfileInfo;
    use kvasir_codec::ProfileError;
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Reuse};

    use super::*;
    use crate::testing::Server;

    async fn connected(server: &Server) -> Kvasir {
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 8 }, rope: None };
        let spec = ModelSpec {
            weights: "toy".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F16,
            ropes: Vec::new(),
            layers: vec![layer],
            thinning: None,
            reuse: Reuse::Prefix,
        };
        Kvasir::builder(server.url()).model(spec).connect().await.expect("connects")
    }

    #[tokio::test]
    async fn a_profile_of_more_bytes_than_allowed_is_not_read() {
        let server = Server::start().await.unwrap();
        let kvasir = connected(&server).await;
        let (client, model, profile) = (kvasir.rest(), kvasir.model_id(), vec![7; 1_000]);
        let hash = client.put_profile(&model, profile.clone()).await.unwrap();
        let read = client.get_profile_within(&model, &hash, profile.len()).await.unwrap();
        assert!(read == profile);
        let refused = client.get_profile_within(&model, &hash, profile.len() - 1).await.unwrap_err();
        let expected = ProfileError::TooMuch { what: "bytes", most: 999 };
        assert!(matches!(&refused, Error::Profile(why) if *why == expected), "{refused}");
        // A list says it beforehand.
        let listed = ProfileInfo { profile_hash: hash, bytes: u64::MAX, stored_at_ms: None };
        let refused = client.listed_profile(kvasir.spec(), &listed).await.unwrap_err();
        assert!(matches!(refused, Error::Profile(ProfileError::TooMuch { what: "bytes", .. })), "{refused}");
        assert_eq!(server.profile_reads(), 2);
    }

    #[tokio::test]
    async fn sessions_that_begin_together_share_the_profiles_of_their_adapter() {
        let server = Server::start().await.unwrap();
        let kvasir = connected(&server).await;
        let key = |salt: &str| BindingKey { adapter: Some("poet@1f3a".into()), salt: Some(salt.into()) };
        let (alice, bob) = (key("alice"), key("bob"));
        let (first, second, other) =
            tokio::join!(kvasir.binding(&alice), kvasir.binding(&alice), kvasir.binding(&bob));
        let (first, second, other) = (first.unwrap(), second.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        assert!(Arc::ptr_eq(&first.codec, &other.codec));
        assert_eq!(kvasir.with_others(|others| others.len()), 2);
    }
}
