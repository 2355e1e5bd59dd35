//! One request of an engine: the stored part of its tokens, its loads, its saves.

mod request;

use std::sync::Arc;

use kvasir_api::{ChunkMatch, ErrorCode};
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
    rest::Client,
    save::{Context, SaveProgress, SaveReport, SaveTicket, StoredTokens},
};

/// One request of an engine, or one conversation turn by turn. Opened by [`Kvasir::session`].
///
/// A session looks up which of its tokens are stored, loads them, and saves newly computed KV. It records the
/// loss of its loads and stores it with the KV saved over them. Sessions share nothing but connections.
/// Dropping a session cancels nothing: loads and saves are separate values.
#[derive(Debug)]
pub struct Session {
    kvasir: Kvasir,
    /// Sends the request's class.
    client: Client,
    /// `None` if the root of this salt or adapter could not be fetched.
    bound: Option<Bound>,
    tokens: Arc<Vec<u32>>,
    lookup_error: Option<Error>,
    beneath: Arc<Beneath>,
}

/// A session's tokens in their namespace.
#[derive(Debug, Clone)]
struct Bound {
    binding: Arc<Binding>,
    /// The root where `chain` begins.
    root: RootHash,
    chain: Arc<TokenChain>,
    matched: Matched,
    /// See [`Session::below_floor_tokens`].
    below_floor: u64,
    /// Leading tokens that this session has stored.
    stored: Arc<StoredTokens>,
}

impl Session {
    async fn open(request: SessionRequest<'_>) -> Self {
        let SessionRequest { kvasir, tokens, class, key, deadline, looks_up } = request;
        let client = kvasir.client(&class);
        let mut session = Self {
            client,
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
            session.bound = Some(Bound { binding, root, chain, matched, below_floor: 0, stored });
            if looks_up { session.ask().await } else { Ok(()) }
        };
        let result = match tokio::time::timeout_at(deadline.instant(), opened).await {
            Ok(result) => result,
            Err(_) => Err(Error::protocol("the lookup did not complete before the deadline")),
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

    /// Leading tokens that are stored at the requested quality; 0 for a miss.
    pub fn matched_tokens(&self) -> u64 {
        self.bound.as_ref().map_or(0, |bound| bound.matched.tokens())
    }

    /// Stored tokens behind the match, from the first chunk on that has no level at the connection's quality. The engine
    /// computes them at each request, and saves do not store them again: a namespace has a chunk as its first writer
    /// stored it. Give clients of a higher quality a namespace of their own.
    pub fn below_floor_tokens(&self) -> u64 {
        self.bound.as_ref().map_or(0, |bound| bound.below_floor)
    }

    /// The stored objects that hold the match, in order.
    pub fn chunks(&self) -> &[ChunkMatch] {
        self.bound.as_ref().map_or(&[], |bound| &bound.matched.chunks)
    }

    /// Why the lookup that opened the session failed: the session is a miss, and can still save. `None` after
    /// [`lookup`](Self::lookup), which returns its own error.
    pub fn lookup_error(&self) -> Option<&Error> {
        self.lookup_error.as_ref()
    }

    /// Looks the tokens up again and returns [`matched_tokens`](Self::matched_tokens).
    ///
    /// # Errors
    /// Those of the request; the previous match is kept.
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
        let mut matched = match Matched::ask(&self.client, &lookup).await {
            // The service has lost its bucket: nothing is stored, and chains begin at another root.
            Err(error) if error.code() == Some(ErrorCode::UnknownModel) => {
                bound.root = bound.binding.ask_for_root(&self.client).await?;
                bound.chain = Arc::new(TokenChain::new(bound.root, &self.tokens));
                bound.stored = Arc::default();
                Matched::nothing()
            }
            matched => matched?,
        };
        let (codec, floor) = (&bound.binding.codec, self.kvasir.quality());
        let (stored, mut is_coarse) = (matched.tokens(), false);
        matched.take_while(|chunk| match codec.decoder(&chunk.profile_hash) {
            Some(decoder) => {
                is_coarse = PlannedLevels::new(chunk, &*decoder, floor).is_none();
                !is_coarse
            }
            None => {
                codec.fetch_in_background(&self.client, chunk.profile_hash, self.kvasir.runtime());
                false
            }
        });
        bound.below_floor = if is_coarse { stored - matched.tokens() } else { 0 };
        if is_coarse {
            self.kvasir.lookup_log().below_floor(bound.below_floor);
        }
        bound.matched = matched;
        Ok(())
    }

    /// Appends tokens: the generated ones, and the next turn. Only new blocks are hashed. The match is kept;
    /// look up again to extend it.
    pub fn extend(&mut self, tokens: &[u32]) {
        Arc::make_mut(&mut self.tokens).extend_from_slice(tokens);
        if let Some(bound) = &mut self.bound {
            Arc::make_mut(&mut bound.chain).resize(&self.tokens);
        }
    }

    /// Reports that the engine already had KV of these tokens with this loss: from its own prefix cache,
    /// filled by an earlier load ([`Loaded::loss`](crate::Loaded::loss)). Saves carry the loss.
    pub fn reused(&self, loss: Loss) {
        self.beneath.settle(loss);
    }

    /// Loads the match into an engine's pages by the deadline.
    ///
    /// `tables` is one table, or one per rank of this node: the bytes are fetched once, and each rank's
    /// layers and heads are decoded from them. Page `i` of a table holds tokens `i × page_tokens ..`. The
    /// load proceeds without being polled. A failure of the network or the service is no error; it only adds
    /// to [`Loaded::missing`](crate::Loaded::missing).
    ///
    /// # Errors
    /// [`Error::Config`] if a table is too short for the match, the model's caches cannot be written into pages,
    /// or the soft floor is not below the connection's quality.
    pub fn load(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        options: impl Into<LoadOptions>,
    ) -> Result<Load, Error> {
        Ok(Load::new(self.begin(tables, options.into(), TextMode::Deferred)?))
    }

    /// Like [`load`](Self::load), for an engine that computes during the load: GPU and network are separate
    /// resources.
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
        if let Some(soft) = options.soft_floor {
            self.kvasir.quality().check_soft(soft)?;
        }
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

    /// Saves the KV of the first `tokens` tokens in the background and returns at once. `kv` holds them from
    /// token 0 on. The part that is not stored yet is copied, so the engine may reuse its pages when this
    /// returns.
    ///
    /// Dropping the ticket cancels the save; [`SaveTicket::in_background`] lets it continue.
    pub fn save(&self, kv: &dyn KvSource, tokens: usize) -> SaveTicket {
        match self.context(tokens) {
            Some(context) => self.kvasir.save_queue().save(context, kv),
            None => SaveTicket::refused(),
        }
    }

    /// Like [`save`](Self::save) without a copy, for engines that can hold pages (reference counts, a forked
    /// block table): the pages are read chunk by chunk when their turn comes, and released with the save.
    pub fn save_shared(&self, kv: Arc<dyn KvSource + Send + Sync>, tokens: usize) -> SaveTicket {
        match self.context(tokens) {
            Some(context) => self.kvasir.save_queue().save_shared(context, kv),
            None => SaveTicket::refused(),
        }
    }

    /// Like [`save_shared`](Self::save_shared), out of pages that [`load`](Self::load) could take: `tables` is one table, or one
    /// per rank, and together they hold every layer and head. For pages on a device.
    ///
    /// When this is called, the rows of the first `tokens` tokens are in place: whatever writes them was waited for. Nobody
    /// writes them until the save has ended or the pages were reassigned. Pages may be reassigned at any time: a chunk that
    /// was not read whole by then is not stored, and the save ends with [`Error::UnreadablePages`].
    ///
    /// # Errors
    /// [`Error::Config`] if a table is too short, or no table holds some head.
    pub fn save_pages(
        &self,
        tables: impl IntoIterator<Item = BlockTable>,
        tokens: usize,
    ) -> Result<SaveTicket, Error> {
        match self.context(tokens) {
            Some(context) => self.kvasir.save_queue().save_pages(context, tables.into_iter().collect()),
            None => Ok(SaveTicket::refused()),
        }
    }

    /// Saves at full speed and waits for the result, for tools. Calls `progress` after each chunk. Call it
    /// again to resume: acknowledged chunks are found.
    ///
    /// # Errors
    /// That of the first chunk that could not be encoded or uploaded. Chunks acknowledged before it remain
    /// stored.
    pub async fn save_now(
        &self,
        kv: &dyn KvSource,
        tokens: usize,
        progress: impl FnMut(SaveProgress) + Send,
    ) -> Result<SaveReport, Error> {
        let Some(mut context) = self.context(tokens) else {
            return Err(Error::protocol(
                "the namespace of the session's salt or adapter is not known; open a new session",
            ));
        };
        self.kvasir.save_queue().save_now(&mut context, kv, progress).await
    }

    fn context(&self, tokens: usize) -> Option<Context> {
        let bound = self.bound.as_ref()?;
        let count = tokens.min(self.tokens.len());
        let mut context = Context {
            client: self.client.for_prompt(bound.chain.blocks()),
            binding: Arc::clone(&bound.binding),
            tokens: Arc::clone(&self.tokens),
            chain: Arc::clone(&bound.chain),
            beneath: self.beneath.loss(),
            stored: Arc::clone(&bound.stored),
            matched: bound.matched.tokens() as usize,
        };
        let root = bound.binding.root(&self.client, self.kvasir.runtime());
        if root != bound.root && context.stored_tokens() == 0 {
            // The namespace's salt was rotated in the meantime, and nothing in this session depends on the
            // former root.
            context.chain = Arc::new(TokenChain::new(root, &self.tokens[..count]));
            // What is stored under one root is not stored under another.
            context.stored = Arc::default();
        } else if count < self.tokens.len() {
            Arc::make_mut(&mut context.chain).resize(&self.tokens[..count]);
        }
        Some(context)
    }
}
