//! Chunks: stored, announced, looked up, read and removed; the model of the promises judges lookups and reads.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvasir_api::{
    ChunkSample, ChunkStatus, ExplainResponse, LookupResponse, ObjectUrl, StoredChunk, UploadTicket,
    UsageResponse,
};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::Dice,
    model::{Bounds, Interval, Lookup, Model, Outcome},
    service::{expect_problem, lookup_request},
};
use kvasir_types::{ModelId, ObjectDigest, RootHash, SeqHash, TokenChain};
use reqwest::StatusCode;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{Step, contexts::Chain, json, nothing};

const CONTEXTS: u64 = 3;
const CONTEXT_TOKENS: usize = 96;
const CHUNK_TOKENS: usize = 32;
/// The only replica.
const REPLICA: u64 = 0;

pub(super) struct Chunks {
    pub(super) model: ModelId,
    root: RootHash,
    /// Tokens and chunks.
    contexts: Vec<(Vec<u32>, Vec<Chunk>)>,
    judge: RefCell<Model>,
    /// Names of the stored objects of each chunk.
    stored: BTreeMap<SeqHash, ObjectDigest>,
    removed: BTreeSet<SeqHash>,
    /// Uploads that wait, or that were committed, and of which chunk.
    uploads: Vec<(Uuid, usize, usize)>,
}

impl Chunks {
    pub(super) fn new(model: ModelId, root: RootHash) -> Self {
        // One replica that remembers no miss of its own, asked one request at a time.
        let zero = Duration::ZERO;
        let bounds = Bounds {
            unknown: zero,
            negative_ttl: zero,
            removal: Some(zero),
            tombstone: Duration::MAX,
            ttl: None,
        };
        let contexts = (0..CONTEXTS).map(|n| {
            let tokens = chunks::tokens(n, CONTEXT_TOKENS);
            let chunks = chunks::context(root, &tokens, CHUNK_TOKENS, 20);
            (tokens, chunks)
        });
        let (contexts, judge) = (contexts.collect(), RefCell::new(Model::new(bounds)));
        Self {
            model,
            root,
            contexts,
            judge,
            stored: BTreeMap::new(),
            removed: BTreeSet::new(),
            uploads: Vec::new(),
        }
    }

    /// The first chunks of a context, stored or not.
    pub(super) fn some_chain(&self, dice: &mut Dice) -> Chain {
        let (_, chunks) = &self.contexts[dice.below(self.contexts.len())];
        chunks[..1 + dice.below(chunks.len())].iter().map(|chunk| chunk.seq_hash).collect()
    }

    pub(super) fn are_stored(&self, chunks: &[SeqHash]) -> bool {
        chunks.iter().all(|chunk| self.stored.contains_key(chunk))
    }

    pub(super) async fn step(&mut self, step: &Step<'_>, dice: &mut Dice) {
        let (context, nth) = (dice.below(self.contexts.len()), dice.below(CONTEXT_TOKENS / CHUNK_TOKENS));
        let (tokens, chunks) = self.contexts[context].clone();
        let chunk = &chunks[nth];
        let seq_hash = if step.is_random { SeqHash::from([step.at as u8; 32]) } else { chunk.seq_hash };
        let object = self.stored.get(&seq_hash).copied().filter(|_| step.may_find());
        let path = [
            ("model_id", self.model.to_string()),
            ("seq_hash", seq_hash.to_string()),
            ("object_digest", object.unwrap_or([7; 32].into()).to_string()),
        ];
        match step.operation.name.as_str() {
            // The stranger has the model, and another root: the chunk is not of its salt, which nobody can tell.
            "put_chunk" | "announce_upload" | "commit_upload" if step.is_stranger || step.is_random => {}
            "put_chunk" => {
                let put = self.judge.get_mut().put_begins(REPLICA, step.now(), chunk);
                let answer = step.send(&path, "", chunk.bytes.clone()).await;
                self.put(step, chunk, put, answer).await;
            }
            "announce_upload" => {
                let sha256 = ObjectDigest::from(<[u8; 32]>::from(Sha256::digest(&chunk.bytes))).to_string();
                let request = json!({"model_id": self.model, "seq_hash": seq_hash, "object_digest": chunk.object_digest,
                    "bytes": chunk.bytes.len(), "sha256": sha256});
                let answer = step.send(&[], "", request.to_string().into_bytes()).await;
                if answer.status() == StatusCode::CONFLICT && self.removed.contains(&seq_hash) {
                    expect_problem(answer, "direct_unavailable").await;
                    return;
                }
                let ticket: UploadTicket = json(answer, StatusCode::CREATED).await;
                let mut upload = step.bench.guarded.service.http.put(&ticket.url).body(chunk.bytes.clone());
                for (name, value) in &ticket.headers {
                    upload = upload.header(name, value);
                }
                assert!(upload.send().await.expect("an answer").status().is_success());
                self.uploads.push((ticket.upload_id, context, nth));
            }
            "commit_upload" => {
                let drawn =
                    (!self.uploads.is_empty()).then(|| self.uploads.remove(dice.below(self.uploads.len())));
                let Some((upload, context, nth)) = drawn else {
                    let unknown = [("upload_id", Uuid::now_v7().to_string())];
                    return nothing(step.send(&unknown, "", Vec::new()).await).await;
                };
                let chunk = self.contexts[context].1[nth].clone();
                let put = self.judge.get_mut().put_begins(REPLICA, step.now(), &chunk);
                let answer = step.send(&[("upload_id", upload.to_string())], "", Vec::new()).await;
                // Its object may have been stored otherwise and removed since the announcement.
                if answer.status() == StatusCode::CONFLICT && self.removed.contains(&chunk.seq_hash) {
                    expect_problem(answer, "direct_unavailable").await;
                    let refused = self.judge.get_mut().put_ends(put, step.now(), Outcome::Refused, None);
                    return refused.expect("no name was acknowledged");
                }
                self.put(step, &chunk, put, answer).await;
            }
            "get_chunk" | "get_object" => {
                let answer = step.send(&path, "", Vec::new()).await;
                let Some(object) = object else { return nothing(answer).await };
                assert_eq!(answer.status(), StatusCode::OK);
                let bytes = answer.bytes().await.expect("reads");
                let read = self.judge.get_mut().read((REPLICA, at(step)), &seq_hash, &object, 0, &bytes);
                read.expect("its bytes");
                assert_eq!(bytes.len(), chunk.bytes.len(), "all of them");
            }
            "get_object_status" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if object.is_none() {
                    return nothing(answer).await;
                }
                let status: ChunkStatus = json(answer, StatusCode::OK).await;
                assert!(status.stored_at_ms > 0 && status.expires_at_ms.is_none(), "{status:?}");
            }
            "get_object_url" => {
                let answer = step.send(&path, "", Vec::new()).await;
                if object.is_none() {
                    return nothing(answer).await;
                }
                let ObjectUrl { url, .. } = json(answer, StatusCode::OK).await;
                let bytes =
                    step.bench.guarded.service.http.get(url).send().await.expect("an answer").bytes().await;
                assert_eq!(bytes.expect("reads"), chunk.bytes[..]);
            }
            name @ ("delete_chunk" | "delete_object") => {
                let named = (name == "delete_object").then_some(object).flatten();
                let answer = step.send(&path, "", Vec::new()).await;
                if object.is_none() {
                    // Removing once more what lies there until the grace is over may be a success, too.
                    let lies_there =
                        name == "delete_chunk" && step.may_find() && self.removed.contains(&seq_hash);
                    if !lies_there {
                        nothing(answer).await;
                    }
                    return;
                }
                assert_eq!(answer.status(), StatusCode::NO_CONTENT);
                self.removed.insert(seq_hash);
                let judge = self.judge.get_mut();
                let removal = judge.removal_begins(REPLICA, step.now(), seq_hash, named);
                judge.removal_ends(removal, step.now(), Outcome::Acknowledged);
                self.stored.remove(&seq_hash);
            }
            "lookup" => {
                let fresh = dice.below(2) == 0;
                let answer = step.send(&[], "", self.lookup_of(&tokens, fresh)).await;
                let answer: LookupResponse = json(answer, StatusCode::OK).await;
                if step.is_stranger {
                    return assert_eq!(answer.matched_tokens, 0, "of another tenant");
                }
                let chain = &TokenChain::new(self.root, &tokens);
                let lookup = Lookup {
                    by: REPLICA,
                    at: at(step),
                    fresh,
                    reached: true,
                    chain,
                    tokens: &tokens,
                    answer: &answer,
                };
                self.judge.get_mut().lookup(lookup).expect("what is there");
                assert_eq!(
                    answer.matched_tokens,
                    self.leading(&chunks),
                    "one request at a time: neither more nor less"
                );
            }
            "explain" => {
                let request = json!({"model_id": self.model, "namespace": "n", "tokens": tokens});
                let answer = step.send(&[], "", request.to_string().into_bytes()).await;
                let answer: ExplainResponse = json(answer, StatusCode::OK).await;
                let owed = if step.is_stranger { 0 } else { self.leading(&chunks) };
                assert_eq!((answer.tokens, answer.matched_tokens), (tokens.len() as u64, owed));
            }
            "sample_chunks" => {
                let answer = step.send(&path, "?chunks=1000", Vec::new()).await;
                if step.is_random {
                    assert_eq!(answer.status(), StatusCode::OK, "of a model that is there");
                }
                let sample: ChunkSample = json(answer, StatusCode::OK).await;
                let owed: Vec<SeqHash> = self.stored.keys().copied().filter(|_| !step.is_stranger).collect();
                assert_eq!(sample.chunks, owed);
            }
            "get_usage" => {
                let answer = step.send(&[], "", Vec::new()).await;
                let usage: UsageResponse = json(answer, StatusCode::OK).await;
                // It is of a listing that may be a while old.
                assert!(usage.objects <= CONTEXTS * 1_000, "{usage:?}");
                // Another tenant may have objects by key, and no chunk of this model.
                assert!(!step.is_stranger || !usage.bytes_by_model.contains_key(&self.model), "{usage:?}");
            }
            other => panic!("{other} is not judged"),
        }
    }

    async fn put(&mut self, step: &Step<'_>, chunk: &Chunk, put: usize, answer: reqwest::Response) {
        let is_new = !self.stored.contains_key(&chunk.seq_hash);
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        let stored: StoredChunk = json(answer, status).await;
        assert_eq!((stored.seq_hash, stored.created), (chunk.seq_hash, is_new));
        let ended =
            self.judge.get_mut().put_ends(put, step.now(), Outcome::Acknowledged, Some(stored.object_digest));
        ended.expect("a name of these bytes");
        self.stored.insert(chunk.seq_hash, stored.object_digest);
    }

    fn lookup_of(&self, tokens: &[u32], fresh: bool) -> Vec<u8> {
        serde_json::to_vec(&lookup_request(self.model, "n", tokens, fresh)).expect("serialises")
    }

    fn leading(&self, chunks: &[Chunk]) -> u64 {
        let stored = chunks.iter().take_while(|chunk| self.stored.contains_key(&chunk.seq_hash));
        (stored.count() * CHUNK_TOKENS) as u64
    }
}

fn at(step: &Step<'_>) -> Interval {
    Interval { begun: step.now(), ended: step.now() }
}
