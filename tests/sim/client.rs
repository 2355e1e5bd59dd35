//! Clients that believe nothing which is not covered by a checksum or a hash.

use std::sync::Arc;

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use kvasir_api::ChunkMatch;
use kvasir_container::Head;
use kvasir_storage::{
    ByteRange, Lookup, PutChunk, Query, Storage, StorageError, hot::RequestHint, layout::ChunkKey,
};
use kvasir_tests::chunks::{self, Chunk};
use kvasir_types::{ModelId, Name, ObjectDigest, ProfileHash, RootHash, SeqHash, TokenChain};

pub(crate) fn tenant() -> Name {
    "default".parse().expect("a name")
}

pub(crate) fn namespace() -> Name {
    "n".parse().expect("a name")
}

pub(crate) fn model_id() -> ModelId {
    chunks::spec().model_id()
}

pub(crate) fn body(
    bytes: &[u8],
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

/// Registers the model and its profile for a tenant, and asks for a root.
pub(crate) async fn join(storage: &Arc<Storage>, tenant: &Name) -> Result<RootHash, StorageError> {
    let hash = ProfileHash::of(chunks::PROFILE);
    storage.catalog().register_model(tenant, chunks::spec()).await?;
    storage.ingest().put_profile(tenant, &model_id(), &hash, body(chunks::PROFILE)).await?;
    storage.catalog().root(tenant, &namespace(), &model_id()).await
}

/// Stores one chunk.
pub(crate) async fn store(storage: &Arc<Storage>, chunk: &Chunk) -> Result<ObjectDigest, StorageError> {
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant(), &model_id(), &chunk.seq_hash), body(&chunk.bytes))
        .await?;
    Ok(stored.object_digest)
}

/// Stores a context chunk by chunk, and gives what was acknowledged.
pub(crate) async fn store_context(storage: Arc<Storage>, chunks: Vec<Chunk>) -> Vec<SeqHash> {
    let mut acknowledged = Vec::new();
    for chunk in chunks {
        if store(&storage, &chunk).await.is_ok() {
            acknowledged.push(chunk.seq_hash);
        }
    }
    acknowledged
}

async fn whole(storage: &Arc<Storage>, key: &ChunkKey, range: ByteRange) -> Result<Bytes, StorageError> {
    let parts: Vec<Bytes> =
        storage.reads().read(key, range, &RequestHint::default()).await?.bytes.try_collect().await?;
    Ok(parts.concat().into())
}

/// Looks up, reads heads and pieces, and compares what passes all checks with the truth.
///
/// # Errors
/// What was wrong and got past all checks.
pub(crate) async fn load(
    storage: Arc<Storage>,
    root: RootHash,
    tokens: Vec<u32>,
    fresh: bool,
) -> Result<usize, String> {
    let chain = TokenChain::new(root, &tokens);
    let query = Query::Tokens(tokens.clone());
    let Ok(found) =
        storage.lookup(&Lookup::new(&tenant(), &namespace(), &model_id(), query).fresh(fresh)).await
    else {
        return Ok(0);
    };
    let mut delivered = 0;
    for hit in &found.chunks {
        let first = hit.first_token as usize;
        let end = first + hit.tokens as usize;
        let (tenant, model_id) = (tenant(), model_id());
        let key = ChunkKey { tenant, model_id, seq_hash: hit.seq_hash, object_digest: hit.object_digest };
        let Ok(head) = whole(&storage, &key, ByteRange::Bounded(0, hit.head_bytes - 1)).await else { break };
        // What does not verify is a miss.
        let Ok(head) = Head::parse(&head) else { break };
        let usable = first + hit.matched_tokens as usize;
        if !is_of(&head, hit, &chain, tokens.get(first..usable)) {
            break;
        }
        let truth = (end <= tokens.len() && hit.matched_tokens == hit.tokens)
            .then(|| TokenChain::new(root, &tokens[..end]).blocks().last().copied());
        if truth.flatten().is_some_and(|truth| truth != hit.seq_hash) {
            return Err(format!("{hit:?} is not the chunk of these tokens"));
        }
        delivered += usize::from(load_pieces(&storage, &key, &head).await?);
    }
    Ok(delivered)
}

/// Reads every piece by its own range and compares what passes its checksum with what was written.
async fn load_pieces(storage: &Arc<Storage>, key: &ChunkKey, head: &Head) -> Result<bool, String> {
    for (section, span, entry) in head.pieces() {
        let range = ByteRange::Bounded(entry.range.start, entry.range.end - 1);
        let Ok(bytes) = whole(storage, key, range).await else { return Ok(false) };
        if head.check_piece(section, span, &bytes).is_err() {
            return Ok(false);
        }
        let expected = chunks::piece(head.sections()[section].level.0, span, bytes.len());
        if bytes != expected {
            return Err(format!("section {section}, span {span} of {key:?} passed with wrong bytes"));
        }
    }
    Ok(true)
}

/// What the client crate compares before it decodes: the sections of a tail that ends where this chunk does, which a misdirected
/// read may give, are sound, and have the same sequence hash.
fn is_of(head: &Head, hit: &ChunkMatch, chain: &TokenChain, tokens: Option<&[u32]>) -> bool {
    let header = &head.header;
    head.verify_chain().is_ok()
        && header.seq_hash == hit.seq_hash
        && header.first_position == hit.first_token
        && header.object_bytes() == hit.bytes
        && chain.link(hit.first_token as usize) == Some(header.link())
        && tokens.is_some_and(|tokens| head.tokens.get(..tokens.len()) == Some(tokens))
}
