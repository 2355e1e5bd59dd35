//! Explains why a lookup stops where it does, from existing traces: the store's tombstones and staging
//! objects, the refusals recorded by this replica, and lookups of the same tokens under the tenant's other
//! namespaces and models.

mod evictions;
mod objects;
mod profiles;

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, TryStreamExt};
use kvasir_api::{Cause, ExplainRequest, ExplainResponse, FieldDifference, LookupResponse, MissReason};
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{BLOCK_TOKENS, LayerKv, ModelId, ModelSpec, Name, Reuse, RootHash, SeqHash, TokenChain};
use object_store::ObjectMeta;
use serde_json::{Value, json};

use crate::{
    bucket::Bucket,
    catalog::Catalog,
    error::CatalogError,
    index::{Scope, Search},
    ingest::Ingest,
    limits,
    lookup::{Lookup, Lookups, Query},
    read::Reads,
    removal::Removal,
};

/// Maximum number of differing fields to list.
const DIFFERENCES_MAX: usize = 16;

/// The lookup to explain.
struct Question<'a> {
    tenant: &'a Name,
    request: &'a ExplainRequest,
    /// Number of tokens that the lookup matches.
    matched: u64,
}

/// Explains lookups.
#[derive(Debug)]
pub(crate) struct Explain {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    lookups: Arc<Lookups>,
    ingest: Arc<Ingest>,
}

impl Explain {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        reads: Arc<Reads>,
        lookups: Arc<Lookups>,
        ingest: Arc<Ingest>,
    ) -> Self {
        Self { bucket, catalog, reads, lookups, ingest }
    }

    /// Explains a lookup of tokens to its tenant, using only that tenant's data.
    ///
    /// # Errors
    /// [`CatalogError::InvalidSpec`] for an invalid spec; [`Store`](CatalogError::Store).
    pub(crate) async fn explain(
        &self,
        tenant: &Name,
        request: &ExplainRequest,
    ) -> Result<ExplainResponse, CatalogError> {
        if let Some(spec) = &request.spec {
            spec.validate()?;
        }
        let spec = match self.catalog.model(tenant, &request.model_id).await {
            Ok(spec) => Some(ModelSpec::clone(&spec)),
            Err(CatalogError::UnknownModel { .. }) => request.spec.clone(),
            Err(error) => return Err(error),
        };
        let found = self.found(tenant, &request.namespace, &request.model_id, &request.tokens).await?;
        let matched = found.matched_tokens;
        let departures = self.recent_evictions(tenant, &request.model_id, &found);
        let profiles = profiles::matched_profiles(&found);
        let question = Question { tenant, request, matched };
        let tokens = request.tokens.len() as u64;
        let mut causes = Vec::new();
        if matched == tokens {
            let detail = "a lookup matches all of these tokens now".to_owned();
            causes.push(Cause { detail, tokens: matched, ..cause(MissReason::Stored) });
            return Ok(ExplainResponse { tokens, matched_tokens: matched, causes, departures, profiles });
        }
        self.explain_own_place(&question, &mut causes).await?;
        self.explain_namespaces(&question, &mut causes).await?;
        self.explain_models(&question, spec.as_ref(), &mut causes).await?;
        if causes.is_empty() {
            let detail = "no trace of these tokens: they were never stored, or removed so long ago that all traces are collected. \
                          Check that model, namespace and tokenizer are those of the engine that stores";
            causes.push(Cause { detail: detail.to_owned(), ..cause(MissReason::NeverStored) });
        }
        Ok(ExplainResponse { tokens, matched_tokens: matched, causes, departures, profiles })
    }

    /// The longest usable prefix; empty for an unknown model.
    async fn found(
        &self,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
        tokens: &[u32],
    ) -> Result<LookupResponse, CatalogError> {
        let query = Query::Tokens(tokens.to_vec());
        match self.lookups.lookup(&Lookup::new(tenant, namespace, model_id, query).fresh(true)).await {
            Err(CatalogError::UnknownModel { .. }) => {
                Ok(LookupResponse { matched_tokens: 0, chunks: Vec::new() })
            }
            answer => answer,
        }
    }

    /// Traces under the requested model and namespace.
    async fn explain_own_place(
        &self,
        question: &Question<'_>,
        causes: &mut Vec<Cause>,
    ) -> Result<(), CatalogError> {
        let Question { tenant, request, .. } = question;
        let model_id = &request.model_id;
        let spec = match self.catalog.model(tenant, model_id).await {
            Ok(spec) => spec,
            Err(CatalogError::UnknownModel { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (newest, earlier) = self.catalog.roots(tenant, &request.namespace, model_id).await?;
        for root in std::iter::once(newest).chain(earlier) {
            self.explain_under(root, &spec, question, causes).await?;
        }
        causes.sort_by_key(|cause| cause.tokens);
        causes.truncate(DIFFERENCES_MAX);
        Ok(())
    }

    /// Traces of the chains that start at one root.
    async fn explain_under(
        &self,
        root: RootHash,
        spec: &ModelSpec,
        question: &Question<'_>,
        causes: &mut Vec<Cause>,
    ) -> Result<(), CatalogError> {
        let Question { tenant, request, matched } = question;
        let model_id = &request.model_id;
        let chain = TokenChain::new(root, &request.tokens);
        let behind = usize::try_from(matched / BLOCK_TOKENS as u64).unwrap_or(usize::MAX);
        let missing: HashSet<SeqHash> = chain.blocks().iter().skip(behind).copied().collect();
        let tokens_of = |seq_hash: &SeqHash| {
            let block = chain.blocks().iter().position(|hash| hash == seq_hash);
            block.map_or(0, |block| chain.tokens_through(block) as u64)
        };
        if spec.reuse == Reuse::Whole {
            let scope = Scope::new(tenant, model_id);
            let walk = self.reads.index().walk(scope, &root.first_parent(), chain.blocks(), Search::Thorough);
            if walk.matched_blocks() > 0 {
                let detail = "a prefix is stored, but this model's caches are thinned with look-ahead and only match \
                              as a whole; look up exactly the stored tokens";
                let tokens = (walk.matched_blocks() * BLOCK_TOKENS) as u64;
                causes.push(Cause { detail: detail.to_owned(), tokens, ..cause(MissReason::OnlyWhole) });
            }
        }
        self.explain_refusals(question, &missing, tokens_of, causes);
        for (key, meta) in self.tombstones(tenant, model_id, &missing).await? {
            let Some(reason) = self.reads.tombstones().reason_at(&meta.location).await? else { continue };
            causes.push(Cause { tokens: tokens_of(&key.seq_hash), ..removed(reason, &key, &meta) });
        }
        for (key, meta) in self.waiting(tenant, model_id, &missing).await? {
            let detail =
                "its bytes were sent directly and never committed; POST the commit, or store it again";
            causes.push(Cause {
                detail: detail.to_owned(),
                tokens: tokens_of(&key.seq_hash),
                seq_hash: Some(key.seq_hash),
                at_ms: at_ms(&meta),
                ..cause(MissReason::NotAdmitted)
            });
        }
        Ok(())
    }

    fn explain_refusals(
        &self,
        question: &Question<'_>,
        missing: &HashSet<SeqHash>,
        tokens_of: impl Fn(&SeqHash) -> u64,
        causes: &mut Vec<Cause>,
    ) {
        let scope = Scope::new(question.tenant, &question.request.model_id);
        for seq_hash in missing {
            let Some(why) = self.ingest.refusal(scope, *seq_hash) else { continue };
            causes.push(Cause {
                detail: format!("it was sent and refused: {why}"),
                tokens: tokens_of(seq_hash),
                seq_hash: Some(*seq_hash),
                by: Some("request".to_owned()),
                ..cause(MissReason::NotAdmitted)
            });
        }
    }

    /// Tombstones of chunks that end in one of these blocks.
    async fn tombstones(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        missing: &HashSet<SeqHash>,
    ) -> Result<Vec<(ChunkKey, ObjectMeta)>, StoreError> {
        let prefix = self.bucket.layout().model_tombstones_prefix(tenant, model_id);
        let mut listing = self.bucket.list(&prefix, "listing tombstones").take(limits::TRACES_LISTED_MAX);
        let mut found = Vec::new();
        while let Some((key, meta)) = listing.try_next().await? {
            if let Key::Tombstone(key) = key
                && missing.contains(&key.seq_hash)
            {
                found.push((key, meta));
            }
        }
        Ok(found)
    }

    /// Direct uploads of such chunks that are waiting for their commit.
    async fn waiting(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        missing: &HashSet<SeqHash>,
    ) -> Result<Vec<(ChunkKey, ObjectMeta)>, StoreError> {
        let prefix = self.bucket.layout().uploads_prefix(tenant);
        let mut listing = self.bucket.list(&prefix, "listing uploads").take(limits::TRACES_LISTED_MAX);
        let mut found = Vec::new();
        while let Some((key, meta)) = listing.try_next().await? {
            if let Key::Upload(upload) = key
                && upload.chunk.model_id == *model_id
                && missing.contains(&upload.chunk.seq_hash)
            {
                found.push((upload.chunk, meta));
            }
        }
        Ok(found)
    }

    async fn explain_namespaces(
        &self,
        question: &Question<'_>,
        causes: &mut Vec<Cause>,
    ) -> Result<(), CatalogError> {
        let Question { tenant, request, matched } = question;
        let others = self.catalog.list_namespaces(tenant).await?;
        let others = others.into_iter().filter(|name| *name != request.namespace);
        for namespace in others.take(limits::NAMESPACES_COMPARED_MAX) {
            let found = self.found(tenant, &namespace, &request.model_id, &request.tokens).await?;
            let tokens = found.matched_tokens;
            if tokens > *matched {
                let detail = format!(
                    "{tokens} of these tokens are stored in namespace {namespace}; namespaces never match each other: \
                     look up in the one where the engine stores"
                );
                let namespace = Some(namespace);
                causes.push(Cause { detail, tokens, namespace, ..cause(MissReason::OtherNamespace) });
            }
        }
        Ok(())
    }

    async fn explain_models(
        &self,
        question: &Question<'_>,
        spec: Option<&ModelSpec>,
        causes: &mut Vec<Cause>,
    ) -> Result<(), CatalogError> {
        let Question { tenant, request, matched } = question;
        let models = self.catalog.list_models(tenant).await?;
        for model_id in models.into_iter().take(limits::MODELS_COMPARED_MAX) {
            if model_id == request.model_id {
                continue;
            }
            let found = self.found(tenant, &request.namespace, &model_id, &request.tokens).await?;
            let tokens = found.matched_tokens;
            if tokens <= *matched {
                continue;
            }
            let other = self.catalog.model(tenant, &model_id).await?;
            let differences = spec.map(|spec| differences(spec, &other)).unwrap_or_default();
            let fields: Vec<_> = differences.iter().map(|d| d.field.as_str()).collect();
            let detail = match fields.as_slice() {
                [] => format!(
                    "{tokens} of these tokens are stored for model {model_id}; send your model's spec to see in which \
                     field it differs"
                ),
                fields => format!(
                    "{tokens} of these tokens are stored for model {model_id}, which differs in {}; caches of different \
                     models are not interchangeable",
                    fields.join(", ")
                ),
            };
            let model_id = Some(model_id);
            causes.push(Cause { detail, tokens, model_id, differences, ..cause(MissReason::OtherModel) });
        }
        Ok(())
    }
}

fn cause(reason: MissReason) -> Cause {
    Cause {
        reason,
        detail: String::new(),
        tokens: 0,
        seq_hash: None,
        at_ms: None,
        by: None,
        model_id: None,
        differences: Vec::new(),
        namespace: None,
    }
}

fn removed(removal: Removal, key: &ChunkKey, tombstone: &ObjectMeta) -> Cause {
    let is_opaque = key.model_id == ModelId::OPAQUE;
    let (reason, detail) = match removal {
        Removal::Expired if is_opaque => {
            (MissReason::Expired, "its time to live expired; store it again, or raise gc.ttl")
        }
        Removal::Evicted if is_opaque => {
            (MissReason::Evicted, "the collector made room; store it again, or raise gc.capacity")
        }
        Removal::Duplicate if is_opaque => {
            (MissReason::Evicted, "two writers stored different bytes, and this one gave way; store it again")
        }
        Removal::Removed => (MissReason::Removed, "a request removed it; store it again"),
        Removal::Expired => {
            (MissReason::Expired, "its time to live expired; store it again, pin it, or raise gc.ttl")
        }
        Removal::Evicted => {
            (MissReason::Evicted, "the collector made room; store it again, or pin its context")
        }
        Removal::Duplicate | Removal::Contained => (
            MissReason::Evicted,
            "the chunk had another object that readers prefer, which is gone as well; store it again",
        ),
        Removal::Corrupt => (
            MissReason::Quarantined,
            "its stored bytes were damaged in two reads; store it again and check the store's health",
        ),
    };
    Cause {
        detail: detail.to_owned(),
        seq_hash: Some(key.seq_hash),
        at_ms: at_ms(tombstone),
        by: Some(removal.by().to_owned()),
        ..cause(reason)
    }
}

fn at_ms(meta: &ObjectMeta) -> Option<u64> {
    u64::try_from(meta.last_modified.timestamp_millis()).ok()
}

/// The fields in which two specs differ, as paths: of each layer, and of ropes present in both.
fn differences(asked: &ModelSpec, stored: &ModelSpec) -> Vec<FieldDifference> {
    let (mut asked, mut stored) = (asked.clone(), stored.clone());
    for (a, b) in asked.ropes.iter_mut().zip(&mut stored.ropes) {
        if a == b || a.formula.is_none() || b.formula.is_none() {
            (a.formula, b.formula) = (None, None);
        }
    }
    let json = |spec: &ModelSpec| {
        let layer = |layer: &LayerKv| json!({"layout": layer.layout, "rope": layer.rope});
        let mut json = serde_json::to_value(spec).unwrap_or_default();
        json["layers"] = spec.layers.iter().map(layer).collect();
        json
    };
    let (asked, stored) = (&asked, &stored);
    let mut found = Vec::new();
    differ(String::new(), &json(asked), &json(stored), &mut found);
    found
}

fn differ(path: String, asked: &Value, stored: &Value, found: &mut Vec<FieldDifference>) {
    if found.len() == DIFFERENCES_MAX || asked == stored {
        return;
    }
    match (asked, stored) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                differ(path, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differ(format!("{path}[{i}]"), a, b, found);
            }
        }
        _ => {
            let short = |value: &Value| match value {
                Value::Array(items) => format!("{} entries", items.len()),
                Value::Null => "none".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            found.push(FieldDifference { field: path, asked: short(asked), stored: short(stored) });
        }
    }
}
