//! A model in a namespace: where its token chains begin.

use std::sync::{Arc, Mutex, PoisonError};

use kvasir_api::ErrorCode;
use kvasir_types::{Name, RootHash, TokenChain};
use tokio::{runtime::Handle, time::Instant};

use super::codec::Codec;
use crate::{
    Error,
    limits::ROOT_FRESH,
    rest::{BlockLookup, Client},
};

/// The root of a namespace, and when it was last fetched.
#[derive(Debug, Clone, Copy)]
struct Root {
    hash: RootHash,
    asked_at: Instant,
}

/// A model in a namespace.
pub(crate) struct Binding {
    pub(crate) codec: Arc<Codec>,
    pub(crate) namespace: Name,
    root: Mutex<Root>,
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binding").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Binding {
    /// Registers the model, finds an exact profile if it needs one, and fetches the namespace's root.
    pub(crate) async fn open(client: &Client, codec: Arc<Codec>, namespace: Name) -> Result<Self, Error> {
        client.register_model(&codec.spec).await?;
        Box::pin(codec.find_exact(client)).await?;
        let hash = client.namespace_root(codec.model_id, &namespace).await?;
        Ok(Self { codec, namespace, root: Mutex::new(Root { hash, asked_at: Instant::now() }) })
    }

    /// A lookup of a chain in this namespace.
    pub(crate) fn lookup(&self, chain: &Arc<TokenChain>, direct: bool) -> BlockLookup {
        BlockLookup::new(self.codec.model_id, self.namespace.clone(), Arc::clone(chain), direct)
    }

    fn with_root<T>(&self, f: impl FnOnce(&mut Root) -> T) -> T {
        f(&mut self.root.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The root as last fetched. If that is longer ago than [`ROOT_FRESH`], it is fetched again in the
    /// background: an administrator may have rotated the namespace's salt.
    pub(crate) fn root(self: &Arc<Self>, client: &Client, runtime: &Handle) -> RootHash {
        let (hash, is_stale) = self.with_root(|root| {
            let is_stale = root.asked_at.elapsed() >= ROOT_FRESH;
            if is_stale {
                root.asked_at = Instant::now();
            }
            (root.hash, is_stale)
        });
        if is_stale {
            let (this, client) = (Arc::clone(self), client.clone());
            runtime.spawn(async move {
                client.learn_members().await;
                if let Err(error) = this.ask_for_root(&client).await {
                    tracing::debug!(%error, "the root of a namespace could not be refreshed");
                }
            });
        }
        hash
    }

    /// Fetches the root and returns it. A service that has lost its bucket no longer knows the model, which is registered again,
    /// and has another root.
    pub(crate) async fn ask_for_root(&self, client: &Client) -> Result<RootHash, Error> {
        let ask = || client.namespace_root(self.codec.model_id, &self.namespace);
        let hash = match ask().await {
            Err(error) if error.code() == Some(ErrorCode::UnknownModel) => {
                client.register_model(&self.codec.spec).await?;
                ask().await?
            }
            hash => hash?,
        };
        self.with_root(|root| *root = Root { hash, asked_at: Instant::now() });
        Ok(hash)
    }
}
