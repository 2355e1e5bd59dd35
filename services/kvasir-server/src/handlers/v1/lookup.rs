//! The longest usable prefix.

use axum::{
    body::Body,
    extract::{Query as UrlQuery, Request, State},
    http::{HeaderMap, HeaderValue, header, request::Parts},
    response::Response,
};
use kvasir_api::{
    HEADER_SPLIT, LOOKUP_BLOCKS_MAX, LOOKUP_TOKENS_MAX, LookupQuery, LookupRequest, LookupResponse,
    MEDIA_BLOCKS, MEDIA_TOKENS, routes,
};
use kvasir_storage::{Lookup, Query};
use kvasir_store::layout::ChunkKey;
use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{body, hint};
use crate::{api_error::ApiError, auth::Principal, limits, state::AppState};

/// The longest usable prefix of a token sequence. The request is JSON, or raw tokens or block hashes with the
/// other parameters in the query.
#[utoipa::path(post, path = routes::LOOKUP, operation_id = "lookup", tag = "chunks",
    request_body(content((LookupRequest = "application/json"), (inline(kvasir_api::Binary) = "application/vnd.kvasir.tokens"),
        (inline(kvasir_api::Binary) = "application/vnd.kvasir.blocks")),
        description = "JSON; or the tokens as u32 little endian, or the block hashes as 32 bytes each, with model_id, namespace, fresh and direct in the query"),
    responses((status = 200, description = "chunk by chunk; empty if nothing matches", body = LookupResponse)))]
pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    principal: Principal,
    request: Request,
) -> Result<Response, ApiError> {
    // Extractors would copy the headers, and make an error of the query that a body of JSON does not have.
    let (Parts { uri, headers, .. }, request_body) = request.into_parts();
    let media = headers.get(header::CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let (target, query) = if media == MEDIA_TOKENS.as_bytes() || media == MEDIA_BLOCKS.as_bytes() {
        let target = UrlQuery::try_from_uri(&uri);
        let UrlQuery(target) = target.map_err(|e| ApiError::bad_request(e.to_string()))?;
        let query = if media == MEDIA_TOKENS.as_bytes() {
            Query::Tokens(read_tokens(&headers, request_body).await?)
        } else {
            Query::Blocks(read_blocks(&headers, request_body).await?)
        };
        (target, query)
    } else {
        from_json(body::json_within(request_body, limits::LOOKUP_JSON_BYTES_MAX).await?)?
    };
    let asked = match &query {
        Query::Tokens(tokens) => tokens.len(),
        Query::Blocks(blocks) => blocks.len() * BLOCK_TOKENS,
        // Only the sizes of those that are found are known.
        Query::Chunks(_) => 0,
    };
    let LookupQuery { model_id, namespace, fresh, direct } = target;
    let storage = state.caught_up_storage().await?;
    let (tenant, hint) = (principal.tenant.clone(), hint::parse(state.cluster(), &headers)?);
    // Clients that know routes send block hashes.
    let split = match &query {
        Query::Blocks(blocks) => hint::route(&headers)?
            .map(|route| state.cluster().note_lookup(&tenant, route, blocks))
            .unwrap_or_default(),
        Query::Tokens(_) | Query::Chunks(_) => Vec::new(),
    };
    let has_tokens = !matches!(query, Query::Chunks(_));
    let mut found = storage.lookup(&Lookup { tenant, namespace, model_id, query, fresh, hint }).await?;
    if direct {
        for chunk in &mut found.chunks {
            let (tenant, seq_hash, object_digest) =
                (principal.tenant.clone(), chunk.seq_hash, chunk.object_digest);
            let key = ChunkKey { tenant, model_id, seq_hash, object_digest };
            chunk.via = storage.direct_reads().via(&key, true).await;
        }
    }
    if has_tokens {
        state.metrics().api().lookup(found.matched_tokens.max(asked as u64), found.matched_tokens);
    }
    let mut response = answer(&found)?;
    if !split.is_empty() {
        let split: Vec<String> = split.iter().map(ToString::to_string).collect();
        let split = HeaderValue::try_from(split.join(",")).map_err(|error| ApiError::internal(&error))?;
        response.headers_mut().insert(HEADER_SPLIT, split);
    }
    Ok(response)
}

fn answer(found: &LookupResponse) -> Result<Response, ApiError> {
    let text = found.to_json().map_err(|error| ApiError::internal(&error))?;
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn from_json(request: LookupRequest) -> Result<(LookupQuery, Query), ApiError> {
    let LookupRequest { model_id, namespace, tokens, block_hashes, chunk_ids, fresh, direct } = request;
    let over = |what: &str, limit: usize| {
        ApiError::bad_request(format!("more than {limit} {what}; send several lookups"))
    };
    let query = match (tokens, block_hashes, chunk_ids) {
        (Some(tokens), None, None) if tokens.len() > LOOKUP_TOKENS_MAX => {
            return Err(over("tokens", LOOKUP_TOKENS_MAX));
        }
        (Some(tokens), None, None) => Query::Tokens(tokens),
        (None, Some(blocks), None) if blocks.len() > LOOKUP_BLOCKS_MAX => {
            return Err(over("block hashes", LOOKUP_BLOCKS_MAX));
        }
        (None, Some(blocks), None) => Query::Blocks(blocks),
        (None, None, Some(chunks)) if chunks.len() > LOOKUP_BLOCKS_MAX => {
            return Err(over("chunk ids", LOOKUP_BLOCKS_MAX));
        }
        (None, None, Some(chunks)) => Query::Chunks(chunks),
        _ => {
            return Err(ApiError::bad_request("give exactly one of tokens, block_hashes and chunk_ids"));
        }
    };
    Ok((LookupQuery { model_id, namespace, fresh, direct }, query))
}

async fn read_tokens(headers: &HeaderMap, request_body: Body) -> Result<Vec<u32>, ApiError> {
    let bytes = body::read(request_body, body::declared_length(headers), LOOKUP_TOKENS_MAX * 4).await?;
    let (tokens, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(ApiError::bad_request("a body of raw tokens must have four bytes per token"));
    }
    Ok(tokens.iter().map(|token| u32::from_le_bytes(*token)).collect())
}

async fn read_blocks(headers: &HeaderMap, request_body: Body) -> Result<Vec<SeqHash>, ApiError> {
    let bytes = body::read(request_body, body::declared_length(headers), LOOKUP_BLOCKS_MAX * 32).await?;
    let (hashes, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(ApiError::bad_request("a body of block hashes must have 32 bytes per hash"));
    }
    Ok(hashes.iter().map(|hash| SeqHash::from(*hash)).collect())
}
