//! One request of an engine: what is stored of its tokens, loads of it, saves over it.

mod request;

use std::sync::Arc;

use kvasir_api::ChunkMatch;
use kvasir_codec::KvSource;
use kvasir_types::{Loss, RootHash, TokenChain};

pub use request::SessionRequest;

use crate::{
    Error, Kvasir,
    fetcher::TextMode,
    load::{Beneath, Load, LoadOptions, LoadTask, PlannedLevels, Running},
    lookup::Matched,
    model::Binding,
    overlapped::OverlappedLoad,
    pages::BlockTable,
    rest::{Client, RequestClass},
    save::{Context, SaveProgress, SaveReport, SaveTicket, StoredTokens},
};

/// One request of an engine, or one conversation turn by turn. [`Kvasir::session`] opens it.
///
/// It knows what of its tokens is stored, loads that, and saves what was computed; what a load brought at reduced quality is
/// remembered and kept with what is saved over it. Nothing is shared between sessions but connections. Dropping it cancels
/// nothing: loads and saves are values of their own.
#[derive(Debug)]
pub struct Session {
    kvasir: Kvasir,
    /// Says the request's class.
    client: Client,
    class: RequestClass,
    /// None where the service could not be asked for the root of this salt or adapter.
    bound: Option<Bound>,
    tokens: Arc<Vec<u32>>,
    lookup_error: Option<Error>,
    beneath: Arc<Beneath>,
}

/// A session's tokens in their namespace.
#[derive(Debug, Clone)]
struct Bound {
    binding: Arc<Binding>,
    /// The root that `chain` begins at.
    root: RootHash,
    chain: Arc<TokenChain>,
    matched: Matched,
    /// Leading tokens that this session has stored.
    stored: Arc<StoredTokens>,
}

impl Session {
    async fn open(request: SessionRequest<'_>) -> Self {
        let SessionRequest { kvasir, tokens, class, key, deadline, looks_up } = request;
        let client = kvasir.client(&class);
        let mut session = Self {
            client,
            class,
            bound: None,
            tokens: Arc::new(tokens.to_vec()),
            lookup_error: None,
            beneath: Arc::default(),
            kvasir,
        };
        let opened = async {
            let binding = session.kvasir.binding(&key).await?;
            let root = binding.root(&session.client, session.kvasir.runtime());
            let chain = Arc::new(TokenChain::new(root, tokens));
            let (matched, stored) = (Matched::nothing(), Arc::default());
            session.bound = Some(Bound { binding, root, chain, matched, stored });
            if looks_up { session.ask().await } else { Ok(()) }
        };
        let result = match tokio::time::timeout_at(deadline.instant(), opened).await {
            Ok(result) => result,
            Err(_) => Err(Error::protocol("the lookup was not answered before the deadline")),
        };
        match result {
            Ok(()) if looks_up => session.kvasir.lookup_log().answered(),
            Ok(()) => {}
            Err(error) => {
                session.kvasir.lookup_log().failed(&error);
                session.lookup_error = Some(error);
            }
        }
        session
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Leading tokens that are stored at the wanted quality; 0 for a miss.
    pub fn matched_tokens(&self) -> u64 {
        self.bound.as_ref().map_or(0, |bound| bound.matched.tokens())
    }

    /// The stored objects that hold them, in order.
    pub fn chunks(&self) -> &[ChunkMatch] {
        self.bound.as_ref().map_or(&[], |bound| &bound.matched.chunks)
    }

    /// Why the last lookup failed. A session whose lookup failed is a miss, and can still save.
    pub fn lookup_error(&self) -> Option<&Error> {
        self.lookup_error.as_ref()
    }

    /// Looks the tokens up again; gives [`matched_tokens`](Self::matched_tokens).
    ///
    /// # Errors
    /// Those of the request; what was matched before stays.
    pub async fn lookup(&mut self) -> Result<u64, Error> {
        let result = self.ask().await;
        self.lookup_error = None;
        result.map(|()| self.matched_tokens())
    }

    async fn ask(&mut self) -> Result<(), Error> {
        let Some(bound) = &mut self.bound else {
            return Err(Error::protocol(
                "the namespace of the session's salt or adapter is not known; open a new session",
            ));
        };
        let lookup = bound.binding.lookup(&bound.chain, self.kvasir.direct_reads());
        self.client = self.client.for_prompt(bound.chain.blocks());
        let mut matched = Matched::ask(&self.client, &lookup).await?;
        let (codec, floor) = (&bound.binding.codec, self.kvasir.quality());
        matched.take_while(|chunk| match codec.decoder(&chunk.profile_hash) {
            Some(decoder) => PlannedLevels::new(chunk, &*decoder, floor).is_some(),
            None => {
                codec.fetch_in_background(&self.client, chunk.profile_hash, self.kvasir.runtime());
                false
            }
        });
        bound.matched = matched;
        Ok(())
    }

    /// Appends tokens: what the engine generated, and the next turn. Only new blocks are hashed. What is matched stays; look up
    /// again to find more.
    pub fn extend(&mut self, tokens: &[u32]) {
        Arc::make_mut(&mut self.tokens).extend_from_slice(tokens);
        if let Some(bound) = &mut self.bound {
            Arc::make_mut(&mut bound.chain).resize(&self.tokens);
        }
    }

    /// Says that the engine already had KV for these tokens that has lost this: from its own prefix cache, into which a load had
    /// brought it ([`Loaded::loss`](crate::Loaded::loss)). What is saved carries it.
    pub fn reused(&self, loss: Loss) {
        self.beneath.settle(loss);
    }

    /// Loads what is matched into an engine's pages by the deadline.
    ///
    /// `tables` is one table, or one for each rank of this node: the bytes are fetched once, and each rank's layers and heads
    /// are decoded from them. Page `i` of a table holds tokens `i × page_tokens ..`. The load goes on by itself; a failing
    /// network or service is no error, only more that [`Loaded::missing`](crate::Loaded::missing) lists.
    ///
    /// # Errors
    /// [`Error::Config`] when a table is too short for what is matched, or the model's caches cannot be written into pages.
    pub fn load(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: impl Into<LoadOptions>,
    ) -> Result<Load, Error> {
        Ok(Load::new(self.begin(tables, options.into(), TextMode::Deferred)?))
    }

    /// As [`load`](Self::load), for an engine that computes while the load goes on: GPU and network are two resources.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_overlapped(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: impl Into<LoadOptions>,
    ) -> Result<OverlappedLoad, Error> {
        Ok(OverlappedLoad::new(self.begin(tables, options.into(), TextMode::Overlapped)?))
    }

    fn begin(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: LoadOptions,
        text: TextMode,
    ) -> Result<Running, Error> {
        let bound = self.bound.as_ref().filter(|bound| bound.matched.tokens() > 0);
        let Some(bound) = bound else {
            return Ok(Running::miss(options.present, self.tokens.len() as u64, &self.beneath));
        };
        let task = LoadTask {
            client: &self.client,
            binding: &bound.binding,
            runtime: self.kvasir.runtime(),
            learned: self.kvasir.learned(),
            floor: self.kvasir.quality(),
            tokens: &self.tokens,
            lookup: bound.binding.lookup(&bound.chain, self.kvasir.direct_reads()),
            matched: bound.matched.clone(),
            beneath: &self.beneath,
        };
        task.begin(tables.into_iter().collect(), options, text)
    }

    /// Saves the KV of the first `tokens` tokens in the background and returns at once. `kv` holds them from token 0 on; what is
    /// not stored yet is copied, so the engine's pages are free again when this returns.
    ///
    /// The ticket cancels the save when it is dropped; [`SaveTicket::in_background`] lets it go on.
    pub fn save(&self, kv: &dyn KvSource, tokens: usize) -> SaveTicket {
        match self.context(tokens) {
            Some(context) => self.kvasir.save_queue().save(context, kv),
            None => SaveTicket::refused(),
        }
    }

    /// As [`save`](Self::save) without a copy, for engines whose pages can be held (reference counted, a forked block table):
    /// they are read chunk by chunk when their turn comes, and let go with the save.
    pub fn save_shared(&self, kv: Arc<dyn KvSource + Send + Sync>, tokens: usize) -> SaveTicket {
        match self.context(tokens) {
            Some(context) => self.kvasir.save_queue().save_shared(context, kv),
            None => SaveTicket::refused(),
        }
    }

    /// Saves as fast as it can and waits for it, for tools: `progress` is called after each chunk. Calling it again resumes: what
    /// was acknowledged is found.
    ///
    /// # Errors
    /// The first chunk that could not be encoded or uploaded. Chunks acknowledged before it stay stored.
    pub async fn save_now(
        &self,
        kv: &dyn KvSource,
        tokens: usize,
        progress: impl FnMut(SaveProgress) + Send,
    ) -> Result<SaveReport, Error> {
        let Some(context) = self.context(tokens) else {
            return Err(Error::protocol(
                "the namespace of the session's salt or adapter is not known; open a new session",
            ));
        };
        self.kvasir.save_queue().save_now(&context, kv, progress).await
    }

    fn context(&self, tokens: usize) -> Option<Context> {
        let bound = self.bound.as_ref()?;
        let count = tokens.min(self.tokens.len());
        let mut context = Context {
            client: self.client.for_prompt(bound.chain.blocks()),
            binding: Arc::clone(&bound.binding),
            kind: self.class.kind.clone(),
            tokens: Arc::clone(&self.tokens),
            chain: Arc::clone(&bound.chain),
            beneath: self.beneath.loss(),
            stored: Arc::clone(&bound.stored),
            matched: bound.matched.tokens() as usize,
        };
        let root = bound.binding.root(&self.client, self.kvasir.runtime());
        if root != bound.root && context.stored_tokens() == 0 {
            // The namespace's salt was rotated since, and nothing of this session hangs on the former root.
            context.chain = Arc::new(TokenChain::new(root, &self.tokens[..count]));
        } else if count < self.tokens.len() {
            Arc::make_mut(&mut context.chain).resize(&self.tokens[..count]);
        }
        Some(context)
    }
}
