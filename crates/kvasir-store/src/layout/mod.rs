//! Where everything lives in the object store: the only module that builds or reads keys.
//!
//! ```text
//! {root}/2/t/{tenant}/m/{model_id}/c/{seq_hash}/{object_digest}.kvc   chunk objects, named by their bytes
//! {root}/2/t/{tenant}/m/{model_id}/spec.json                          the model
//! {root}/2/t/{tenant}/m/{model_id}/p/{profile_hash}.kvp               its profiles, named by their bytes
//! {root}/2/t/{tenant}/m/{model_id}/d/{seq_hash}/{object_digest}       tombstones
//! {root}/2/t/{tenant}/m/{model_id}/d/{seq_hash}/{object_digest}.gone  since when a tombstone's object is gone
//! {root}/2/t/{tenant}/x/{context_id}/{version}.json                   named contexts
//! {root}/2/t/{tenant}/u/{upload_id}/{model_id}/{seq_hash}/{announced}   direct uploads before their commit
//! {root}/2/t/{tenant}/u/{upload_id}/{number}.{bytes}.{blake3}.kvc     parts of multipart uploads over S3
//! {root}/2/t/{tenant}/o/{namespace}/{key}/-{object_digest}            opaque objects that S3 clients list
//! {root}/2/t/{tenant}/n/{namespace}                                   namespaces that were asked for
//! {root}/2/t/{tenant}/k/{key_id}/{wrapping_key}                        the tenant's keys, wrapped (sealed chunks and parts end in .kvs)
//! {root}/2/t/{tenant}/k/current                                        which of them is for what is new
//! {root}/2/t/{tenant}/salt                                            start of the tenant's token chains
//! {root}/2/t/{tenant}/g/{namespace}/{id}                              later salts of a namespace, one each rotation
//! {root}/2/t/{tenant}/salts/{id}                                      proposals for it, without conditional creates
//! {root}/2/j/removed/{time}.{replica}                                 journal batches of removals, by the store's time in ms
//! {root}/2/j/{log}/{replica}/{n}                                      other journal batches: stored, counted
//! {root}/2/gc/epoch/{n}                                               beginnings of the collector's passes; not empty: of one over the whole store
//! {root}/2/gc/intent/{uuid}                                           chunks that a collector is about to delete
//! {root}/2/gc/uses/{replica}                                          what a replica has served lately
//! {root}/2/gc/victims                                                 what replicas are to evict from their units
//! {root}/2/probe/{uuid}                                               start-up probes
//! ```
//! The `2` is the layout's version. Counters are 20 digits wide, so that a listing is in order.

mod journal_log;
mod listed;
mod segments;

use kvasir_types::{ModelId, Name, ObjectDigest, ProfileHash, SeqHash};
use object_store::path::Path;
use uuid::Uuid;

use self::segments::{chunk_key, counter, hex16, part_key, upload_key};
pub use self::{journal_log::JournalLog, listed::ListedKey};

/// Numbers of batches of removals from here on are times, in ms since 1970. Those of early builds counted from 0 and are
/// named as the other logs' are.
const REMOVALS_TIMED_FROM: u64 = 1_000_000_000_000;

/// Version of the layout: the first segment under the root.
pub const LAYOUT_VERSION: &str = "2";
/// The previous version, of which nothing is read.
const FORMER_LAYOUT_VERSION: &str = "1";

/// One object of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// A chunk object.
    Chunk(ChunkKey),
    /// A chunk object's tombstone: hidden from lookups, its bytes are deleted after the grace.
    Tombstone(ChunkKey),
    /// Records when the bytes of an object with a tombstone were deleted; empty.
    Gone(ChunkKey),
    /// A model's spec.
    Spec {
        /// The tenant.
        tenant: Name,
        /// The model.
        model_id: ModelId,
    },
    /// A profile.
    Profile {
        /// The tenant.
        tenant: Name,
        /// The model it belongs to.
        model_id: ModelId,
        /// The profile.
        profile_hash: ProfileHash,
    },
    /// One version of a named context.
    Context {
        /// The tenant.
        tenant: Name,
        /// The context.
        context_id: Uuid,
        /// The newest one is current.
        version: u64,
    },
    /// A direct upload before its commit.
    Upload(UploadKey),
    /// A part of a multipart upload over S3 before its completion.
    Part(PartKey),
    /// Marks an opaque object as listed; empty. See [`ListedKey`].
    Listed(ListedKey),
    /// A requested namespace; empty.
    Namespace {
        /// The tenant.
        tenant: Name,
        /// The namespace.
        namespace: Name,
    },
    /// A tenant key, wrapped by a key of the key service.
    TenantKey {
        /// The tenant.
        tenant: Name,
        /// Its id.
        id: [u8; 16],
        /// The wrapping key.
        wrapped_by: Name,
    },
    /// Names the tenant key for new objects.
    TenantKeyChoice {
        /// The tenant.
        tenant: Name,
    },
    /// The salt of a tenant's chains.
    Salt {
        /// The tenant.
        tenant: Name,
    },
    /// A proposal for the salt; only on stores without conditional creates.
    SaltProposal {
        /// The tenant.
        tenant: Name,
        /// Its id.
        id: Uuid,
    },
    /// A rotated salt of a namespace.
    SaltRotation {
        /// The tenant.
        tenant: Name,
        /// The namespace.
        namespace: Name,
        /// Its id.
        id: Uuid,
    },
    /// A journal batch.
    Journal {
        /// The log.
        log: JournalLog,
        /// The replica that wrote it.
        replica: Name,
        /// Its number among those of the replica in this log. Of removals, also the store's time in ms since 1970.
        n: u64,
    },
    /// The beginning of a pass of the collector.
    GcEpoch {
        /// Its number.
        n: u64,
    },
    /// Chunks for which a collector is about to write tombstones.
    GcIntent(Uuid),
    /// What this replica has served lately.
    GcUses(Name),
    /// What replicas are to evict from their units.
    GcVictims,
    /// A start-up probe.
    Probe(Uuid),
}

/// The full name of a chunk object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkKey {
    /// The tenant.
    pub tenant: Name,
    /// The model.
    pub model_id: ModelId,
    /// The chunk.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
}

/// Names a direct upload, and contains its whole announcement, so that replicas keep no state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadKey {
    /// The intended chunk.
    pub chunk: ChunkKey,
    /// The upload.
    pub upload_id: Uuid,
    /// Announced size.
    pub bytes: u64,
    /// Announced SHA-256.
    pub sha256: [u8; 32],
}

/// Names a part of a multipart upload, and contains all that its completion needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartKey {
    /// The tenant.
    pub tenant: Name,
    /// The upload.
    pub upload_id: Uuid,
    /// Its number among the upload's parts.
    pub number: u16,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of its bytes.
    pub digest: ObjectDigest,
}

/// The keys under one root prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    base: Path,
    former: Path,
}

impl Layout {
    /// A layout under `root`; the empty path is the store's own root.
    pub fn new(root: &Path) -> Self {
        Self { base: root.clone().join(LAYOUT_VERSION), former: root.clone().join(FORMER_LAYOUT_VERSION) }
    }

    /// The path of a key.
    pub fn path(&self, key: &Key) -> Path {
        match key {
            Key::Chunk(chunk) => self
                .chunk_prefix(&chunk.tenant, &chunk.model_id, &chunk.seq_hash)
                .join(format!("{}.kvc", chunk.object_digest)),
            Key::Tombstone(chunk) => self
                .tombstones_prefix(&chunk.tenant, &chunk.model_id, &chunk.seq_hash)
                .join(chunk.object_digest.to_string()),
            Key::Gone(chunk) => self
                .tombstones_prefix(&chunk.tenant, &chunk.model_id, &chunk.seq_hash)
                .join(format!("{}.gone", chunk.object_digest)),
            Key::Spec { tenant, model_id } => self.model(tenant, model_id).join("spec.json"),
            Key::Profile { tenant, model_id, profile_hash } => {
                self.profiles_prefix(tenant, model_id).join(format!("{profile_hash}.kvp"))
            }
            Key::Context { tenant, context_id, version } => {
                self.context_prefix(tenant, *context_id).join(format!("{version:020}.json"))
            }
            Key::Upload(upload) => self
                .upload_prefix(&upload.chunk.tenant, upload.upload_id)
                .join(upload.chunk.model_id.to_string())
                .join(upload.chunk.seq_hash.to_string())
                .join(format!(
                    "{}.{:020}.{}",
                    upload.chunk.object_digest,
                    upload.bytes,
                    ObjectDigest::from(upload.sha256)
                )),
            Key::Part(part) => self
                .upload_prefix(&part.tenant, part.upload_id)
                .join(format!("{:05}.{:020}.{}.kvc", part.number, part.bytes, part.digest)),
            Key::Listed(listed) => listed.path(self),
            Key::Namespace { tenant, namespace } => self.namespaces_prefix(tenant).join(namespace.as_str()),
            Key::TenantKey { tenant, id, wrapped_by } => {
                self.tenant_keys_prefix(tenant).join(hex16(id)).join(wrapped_by.as_str())
            }
            Key::TenantKeyChoice { tenant } => self.tenant_keys_prefix(tenant).join("current"),
            Key::Salt { tenant } => self.tenant(tenant).join("salt"),
            Key::SaltProposal { tenant, id } => self.salts_prefix(tenant).join(id.to_string()),
            Key::SaltRotation { tenant, namespace, id } => {
                self.salt_rotations_prefix(tenant, namespace).join(id.to_string())
            }
            Key::Journal { log: JournalLog::Removed, replica, n } if *n >= REMOVALS_TIMED_FROM => {
                self.log_prefix(JournalLog::Removed).join(format!("{n:020}.{replica}"))
            }
            Key::Journal { log, replica, n } => {
                self.log_prefix(*log).join(replica.as_str()).join(format!("{n:020}"))
            }
            Key::GcEpoch { n } => self.epochs_prefix().join(format!("{n:020}")),
            Key::GcIntent(id) => self.intents_prefix().join(id.to_string()),
            Key::GcUses(replica) => self.uses_prefix().join(replica.as_str()),
            Key::GcVictims => self.base.clone().join("gc").join("victims"),
            Key::Probe(id) => self.base.clone().join("probe").join(id.to_string()),
        }
    }

    /// The key of a path, or `None` if the path is not one of ours.
    pub fn parse(&self, path: &Path) -> Option<Key> {
        let parts: Vec<_> = path.prefix_match(&self.base)?.collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let key = match *parts.as_slice() {
            ["t", tenant, "m", model, "c", seq, file] => {
                Key::Chunk(chunk_key(tenant, model, seq, file.strip_suffix(".kvc")?)?)
            }
            ["t", tenant, "m", model, "d", seq, file] => match file.strip_suffix(".gone") {
                Some(object) => Key::Gone(chunk_key(tenant, model, seq, object)?),
                None => Key::Tombstone(chunk_key(tenant, model, seq, file)?),
            },
            ["t", tenant, "m", model, "spec.json"] => {
                Key::Spec { tenant: tenant.parse().ok()?, model_id: model.parse().ok()? }
            }
            ["t", tenant, "m", model, "p", file] => Key::Profile {
                tenant: tenant.parse().ok()?,
                model_id: model.parse().ok()?,
                profile_hash: file.strip_suffix(".kvp")?.parse().ok()?,
            },
            ["t", tenant, "x", context, file] => Key::Context {
                tenant: tenant.parse().ok()?,
                context_id: context.parse().ok()?,
                version: counter(file.strip_suffix(".json")?)?,
            },
            ["t", tenant, "u", upload, model, seq, file] => {
                Key::Upload(upload_key(tenant, upload, model, seq, file)?)
            }
            ["t", tenant, "u", upload, file] => {
                Key::Part(part_key(tenant, upload, file.strip_suffix(".kvc")?)?)
            }
            ["t", tenant, "o", namespace, ref key @ .., object] => {
                Key::Listed(ListedKey::parse(tenant, namespace, key, object)?)
            }
            ["t", tenant, "n", namespace] => {
                Key::Namespace { tenant: tenant.parse().ok()?, namespace: namespace.parse().ok()? }
            }
            ["t", tenant, "k", id, wrapped_by] => Key::TenantKey {
                tenant: tenant.parse().ok()?,
                id: u128::from_str_radix(id, 16).ok()?.to_be_bytes(),
                wrapped_by: wrapped_by.parse().ok()?,
            },
            ["t", tenant, "k", "current"] => Key::TenantKeyChoice { tenant: tenant.parse().ok()? },
            ["t", tenant, "salt"] => Key::Salt { tenant: tenant.parse().ok()? },
            ["t", tenant, "salts", id] => {
                Key::SaltProposal { tenant: tenant.parse().ok()?, id: id.parse().ok()? }
            }
            ["t", tenant, "g", namespace, id] => Key::SaltRotation {
                tenant: tenant.parse().ok()?,
                namespace: namespace.parse().ok()?,
                id: id.parse().ok()?,
            },
            ["j", "removed", file] => {
                let (n, replica) = file.split_once('.')?;
                Key::Journal { log: JournalLog::Removed, replica: replica.parse().ok()?, n: counter(n)? }
            }
            ["j", log, replica, n] => {
                Key::Journal { log: JournalLog::parse(log)?, replica: replica.parse().ok()?, n: counter(n)? }
            }
            ["gc", "epoch", n] => Key::GcEpoch { n: counter(n)? },
            ["gc", "intent", id] => Key::GcIntent(id.parse().ok()?),
            ["gc", "uses", replica] => Key::GcUses(replica.parse().ok()?),
            ["gc", "victims"] => Key::GcVictims,
            ["probe", id] => Key::Probe(id.parse().ok()?),
            _ => return None,
        };
        // Upper-case hex and other spellings parse, but are not ours: a key has exactly one path.
        (self.path(&key) == *path).then_some(key)
    }

    /// All objects of this layout.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// All objects of the previous layout.
    pub fn former(&self) -> &Path {
        &self.former
    }

    /// All tenants.
    pub fn tenants_prefix(&self) -> Path {
        self.base.clone().join("t")
    }

    /// All objects of one seq_hash.
    pub fn chunk_prefix(&self, tenant: &Name, model_id: &ModelId, seq_hash: &SeqHash) -> Path {
        self.model(tenant, model_id).join("c").join(seq_hash.to_string())
    }

    /// All tombstones of one seq_hash.
    pub fn tombstones_prefix(&self, tenant: &Name, model_id: &ModelId, seq_hash: &SeqHash) -> Path {
        self.model(tenant, model_id).join("d").join(seq_hash.to_string())
    }

    /// All profiles of a model.
    pub fn profiles_prefix(&self, tenant: &Name, model_id: &ModelId) -> Path {
        self.model(tenant, model_id).join("p")
    }

    /// All tombstones of a model.
    pub fn model_tombstones_prefix(&self, tenant: &Name, model_id: &ModelId) -> Path {
        self.model(tenant, model_id).join("d")
    }

    /// All models of a tenant.
    pub fn models_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("m")
    }

    /// All direct uploads of a tenant.
    pub fn uploads_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("u")
    }

    /// One direct upload.
    pub fn upload_prefix(&self, tenant: &Name, upload_id: Uuid) -> Path {
        self.uploads_prefix(tenant).join(upload_id.to_string())
    }

    /// All opaque objects of a namespace that are listed.
    pub fn listed_prefix(&self, tenant: &Name, namespace: &Name) -> Path {
        self.tenant(tenant).join("o").join(namespace.as_str())
    }

    /// All namespaces of a tenant.
    pub fn namespaces_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("n")
    }

    /// All contexts of a tenant.
    pub fn contexts_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("x")
    }

    /// All versions of a context.
    pub fn context_prefix(&self, tenant: &Name, context_id: Uuid) -> Path {
        self.contexts_prefix(tenant).join(context_id.to_string())
    }

    /// All proposals for a tenant's salt.
    pub fn salts_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("salts")
    }

    /// All wrapped keys of a tenant.
    pub fn tenant_keys_prefix(&self, tenant: &Name) -> Path {
        self.tenant(tenant).join("k")
    }

    /// All rotated salts of a namespace.
    pub fn salt_rotations_prefix(&self, tenant: &Name, namespace: &Name) -> Path {
        self.tenant(tenant).join("g").join(namespace.as_str())
    }

    /// All chunks of a model.
    pub fn model_chunks_prefix(&self, tenant: &Name, model_id: &ModelId) -> Path {
        self.model(tenant, model_id).join("c")
    }

    /// All journals.
    pub fn journal_prefix(&self) -> Path {
        self.base.clone().join("j")
    }

    /// All journals of one log.
    pub fn log_prefix(&self, log: JournalLog) -> Path {
        self.journal_prefix().join(log.as_str())
    }

    /// The offset of a listing without the batches of removals that are named by an earlier time of the store, in ms.
    pub fn removals_since(&self, store_ms: u64) -> Path {
        self.log_prefix(JournalLog::Removed).join(format!("{store_ms:020}"))
    }

    /// All GC intents.
    pub fn intents_prefix(&self) -> Path {
        self.base.clone().join("gc").join("intent")
    }

    /// What all replicas have served lately.
    pub fn uses_prefix(&self) -> Path {
        self.base.clone().join("gc").join("uses")
    }

    /// All GC epochs.
    pub fn epochs_prefix(&self) -> Path {
        self.base.clone().join("gc").join("epoch")
    }

    /// All objects of a tenant.
    pub fn tenant(&self, tenant: &Name) -> Path {
        self.tenants_prefix().join(tenant.as_str())
    }

    fn model(&self, tenant: &Name, model_id: &ModelId) -> Path {
        self.tenant(tenant).join("m").join(model_id.to_string())
    }
}

#[cfg(test)]
mod tests;
