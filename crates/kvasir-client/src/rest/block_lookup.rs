//! Lookups of a session's tokens.

use std::sync::Arc;

use kvasir_api::{LOOKUP_BLOCKS_MAX, LookupQuery, LookupResponse};
use kvasir_types::{ModelId, Name, TokenChain};

use super::Client;
use crate::Error;

/// Queries the longest stored prefix of a chain. Repeating the query renews presigned URLs.
#[derive(Debug, Clone)]
pub(crate) struct BlockLookup {
    target: LookupQuery,
    chain: Arc<TokenChain>,
}

impl BlockLookup {
    pub(crate) const fn new(
        model_id: ModelId,
        namespace: Name,
        chain: Arc<TokenChain>,
        direct: bool,
    ) -> Self {
        Self { target: LookupQuery { model_id, namespace, fresh: false, direct }, chain }
    }

    /// Whether it requests presigned URLs.
    pub(crate) const fn is_direct(&self) -> bool {
        self.target.direct
    }

    pub(crate) const fn chain(&self) -> &Arc<TokenChain> {
        &self.chain
    }

    pub(crate) async fn send(&self, client: &Client) -> Result<LookupResponse, Error> {
        let blocks = self.chain.blocks();
        client.lookup_blocks(&self.target, &blocks[..blocks.len().min(LOOKUP_BLOCKS_MAX)]).await
    }
}
