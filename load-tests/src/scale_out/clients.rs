//! The clients of several replicas: how they choose one, look a prompt up, read it and store it.

use std::{
    collections::HashSet,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use kvasir_api::{LookupQuery, LookupResponse, Via};
use kvasir_client::rest::{Client, ClientConfig, ObjectRange};
use kvasir_tests::{chunks, faulty::Dice};
use kvasir_types::{Medium, ModelId, Name, ObjectDigest, RootHash, SeqHash};
use serde::{Deserialize, Serialize};

use super::prompts::{CHUNK_TOKENS, Prompt};
use crate::traffic::record::Failure;

/// Attempts to read a prompt by routes: as many as the client's fetcher makes.
const ATTEMPTS: usize = 3;

/// Which replica is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Spreading {
    /// The one that keeps the prompt's route, chosen by the client crate.
    Routes,
    /// Any, for each prompt anew, and the next one where it fails: a plain load balancer.
    Chance,
}

impl Spreading {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::Chance => "chance",
        }
    }
}

/// What a prompt found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    /// Its chunks, those of them that are stored, and those of these that the replica had in memory, and in memory or on disk.
    pub(super) chunks: usize,
    pub(super) stored: usize,
    pub(super) in_memory: usize,
    pub(super) hot: usize,
    pub(super) bytes: u64,
    /// How often all of it was tried again.
    pub(super) again: usize,
}

/// A chunk that is stored, who reads it, and its bytes.
pub(super) struct KnownChunk {
    client: Client,
    range: ObjectRange,
    bytes: Bytes,
}

impl KnownChunk {
    /// How many bytes it has.
    pub(super) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Reads it and compares every byte. Returns how often it was tried again.
    pub(super) async fn read(&self) -> Result<usize, Failure> {
        let mut last = Failure::new("there is no replica");
        for again in 0..ATTEMPTS {
            match self.read_once().await {
                Ok(()) => return Ok(again),
                Err(failure) if failure.wrong => return Err(failure),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn read_once(&self) -> Result<(), Failure> {
        let mut read = self.client.get_object(&self.range, &Via::Proxy).await.map_err(|e| failed(&e))?;
        let mut left = &self.bytes[..];
        // As it arrives: a copy and a hash would cost as much as receiving it.
        while let Some(part) = read.next().await.map_err(|e| failed(&e))? {
            left = left.strip_prefix(&part[..]).ok_or_else(|| Failure::wrong("another object's bytes"))?;
        }
        Ok(())
    }
}

/// Clients of all replicas.
pub(super) struct ReplicaClients {
    spreading: Spreading,
    /// One of each replica. By routes, the first knows all members.
    clients: Vec<Client>,
    urls: Vec<String>,
    model_id: ModelId,
    /// Of the namespace, once it is registered.
    root: OnceLock<RootHash>,
    drawn: AtomicU64,
}

fn failed(error: &kvasir_client::Error) -> Failure {
    match error {
        kvasir_client::Error::Api(error) => Failure::new(format!("{} {}", error.status, error.code)),
        kvasir_client::Error::Transport(_) => Failure::new("connection broke"),
        other => Failure::new(other.to_string()),
    }
}

impl ReplicaClients {
    pub(super) fn new(spreading: Spreading, urls: Vec<String>) -> Result<Self> {
        let client = |url: &String| anyhow::Ok(Client::new(url.parse()?, ClientConfig::default())?);
        Ok(Self {
            spreading,
            clients: urls.iter().map(client).collect::<Result<_>>()?,
            urls,
            model_id: chunks::spec().model_id(),
            root: OnceLock::new(),
            drawn: AtomicU64::new(0),
        })
    }

    /// Registers the model, its profile and the namespace, and learns the members.
    pub(super) async fn register(&self) -> Result<()> {
        let first = self.clients.first().context("there are replicas")?;
        first.learn_members().await;
        first.register_model(&chunks::spec()).await?;
        first.put_profile(&self.model_id, chunks::PROFILE).await?;
        let root = first.namespace_root(self.model_id, &self.target()?.namespace).await?;
        self.root.get_or_init(|| root);
        Ok(())
    }

    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    pub(super) fn prompt(&self, parts: &[u64]) -> Prompt {
        Prompt::new(*self.root.get().expect("is registered"), parts)
    }

    fn target(&self) -> Result<LookupQuery> {
        let namespace: Name = "n".parse()?;
        Ok(LookupQuery { model_id: self.model_id, namespace, fresh: false, direct: false })
    }

    /// The clients that a prompt is tried with, in turn.
    fn of(&self, prompt: &Prompt) -> Vec<Client> {
        match self.spreading {
            Spreading::Routes => vec![self.clients[0].for_prompt(prompt.blocks()); ATTEMPTS],
            Spreading::Chance => {
                let mut clients = self.clients.clone();
                let first = Dice::new(self.drawn.fetch_add(1, Ordering::Relaxed)).below(clients.len());
                clients.rotate_left(first);
                clients
            }
        }
    }

    /// Looks a prompt up, and reads and checks the part that is stored.
    pub(super) async fn load(&self, prompt: &Prompt) -> Result<Found, Failure> {
        let mut last = Failure::new("there is no replica");
        for (again, client) in self.of(prompt).into_iter().enumerate() {
            match self.load_by(&client, prompt).await {
                Ok(found) => return Ok(Found { again, ..found }),
                Err(failure) if failure.wrong => return Err(failure),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn lookup(&self, client: &Client, prompt: &Prompt, fresh: bool) -> Result<LookupResponse, Failure> {
        let target = self.target().map_err(|error| Failure::new(error.to_string()))?;
        client.lookup_blocks(&LookupQuery { fresh, ..target }, prompt.blocks()).await.map_err(|e| failed(&e))
    }

    async fn load_by(&self, client: &Client, prompt: &Prompt) -> Result<Found, Failure> {
        let answer = self.lookup(client, prompt, false).await?;
        let mut found = Found { chunks: prompt.chunks(), ..Found::default() };
        for chunk in &answer.chunks {
            let range = ObjectRange {
                model_id: self.model_id,
                seq_hash: chunk.seq_hash,
                object_digest: chunk.object_digest,
                start: 0,
                end: chunk.bytes,
            };
            let mut read = client.get_object(&range, &Via::Proxy).await.map_err(|e| failed(&e))?;
            let mut object = Vec::with_capacity(chunk.bytes as usize);
            while let Some(part) = read.next().await.map_err(|e| failed(&e))? {
                object.extend_from_slice(&part);
            }
            if ObjectDigest::of(&object) != chunk.object_digest {
                return Err(Failure::wrong("another object's bytes"));
            }
            found.stored += 1;
            found.in_memory += usize::from(chunk.medium == Medium::Cpu);
            found.hot += usize::from(chunk.medium != Medium::Object);
            found.bytes += chunk.bytes;
        }
        Ok(found)
    }

    /// Stores the chunks of a prompt from one on.
    pub(super) async fn store(
        &self,
        prompt: &Prompt,
        from: usize,
        chunk_bytes: usize,
    ) -> Result<(), Failure> {
        let clients = self.of(prompt);
        for nth in from..prompt.chunks() {
            let chunk = prompt.chunk(self.model_id, nth, chunk_bytes);
            let (seq_hash, object) = chunk.map_err(|error| Failure::new(error.to_string()))?;
            let mut last = Some(Failure::new("there is no replica"));
            for client in &clients {
                let stored = client.put_chunk(&self.model_id, &seq_hash, object.clone()).await;
                last = stored.err().map(|error| failed(&error));
                if last.is_none() {
                    break;
                }
            }
            last.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Stores the first chunk of a prompt by its route, and reads it once, so that it is hot.
    pub(super) async fn store_known(
        &self,
        prompt: &Prompt,
        chunk_bytes: usize,
    ) -> Result<KnownChunk, Failure> {
        let chunk = prompt.chunk(self.model_id, 0, chunk_bytes);
        let (seq_hash, bytes) = chunk.map_err(|error| Failure::new(error.to_string()))?;
        let (client, model_id) = (self.clients[0].for_prompt(prompt.blocks()), self.model_id);
        let stored = client.put_chunk(&model_id, &seq_hash, bytes.clone()).await.map_err(|e| failed(&e))?;
        let (object_digest, end) = (stored.object_digest, bytes.len() as u64);
        let range = ObjectRange { model_id, seq_hash, object_digest, start: 0, end };
        let chunk = KnownChunk { client, range, bytes };
        chunk.read().await?;
        Ok(chunk)
    }

    /// Whether one replica, asked directly, finds all of a prompt.
    pub(super) async fn is_found_by(&self, nth: usize, prompt: &Prompt, fresh: bool) -> bool {
        let answer = self.lookup(&self.clients[nth], prompt, fresh).await;
        answer.is_ok_and(|answer| answer.matched_tokens as usize == prompt.chunks() * CHUNK_TOKENS)
    }

    /// The chunks of a prompt that a replica has in memory.
    pub(super) async fn hot_at(&self, nth: usize, prompt: &Prompt) -> Result<HashSet<SeqHash>, Failure> {
        let answer = self.lookup(&self.clients[nth], prompt, false).await?;
        let hot = answer.chunks.iter().filter(|chunk| chunk.medium == Medium::Cpu);
        Ok(hot.map(|chunk| chunk.seq_hash).collect())
    }
}
