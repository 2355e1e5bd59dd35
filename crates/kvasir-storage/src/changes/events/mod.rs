//! Events: changes of chunks, for prefix-aware routers, and of profiles, for operators.
//!
//! This replica's own changes and those from the journal enter one bounded log. Readers hold a position in it
//! and no memory. A reader that falls behind the log's oldest event is told so, and its stream ends. A reader
//! that reconnects names its last event. On the same replica it resumes exactly there. On another replica it
//! gets everything from [`EVENTS_OVERLAP`](limits::EVENTS_OVERLAP) before that event on, so it sees some
//! events twice; if the log does not reach back that far, a `cleared` event tells it to discard its state.
//! Events of profiles are not in the journal: only the replica that learned of one from its caller has it.

mod log;

use std::{sync::Arc, time::SystemTime};

use kvasir_api::{Event, EventType};
use kvasir_types::{BLOCK_TOKENS, Level, Medium, ModelId, Name, ProfileHash};

pub use log::{EventLog, LogPosition, Portion};

use super::{Changes, journal::JournalEntry};
use crate::{index::Scope, limits};

impl Changes {
    /// The log of events of this replica.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Records the namespace of an entry: the one it names, or that of its parent chunk.
    pub(super) fn note_labels(&self, entry: &JournalEntry) {
        if let JournalEntry::Stored { tenant, model_id, entry, namespace: Some(namespace), .. } = entry {
            let scope = Scope::new(tenant, model_id);
            self.catalog.note_label(scope, *entry.row.seq_hash.as_bytes(), namespace);
        }
    }

    /// A change by `replica` as an event; `None` if readers are not told of it. Sends no request to the
    /// store: an unknown label is left out.
    pub(super) fn event_of(&self, entry: &JournalEntry, replica: &Name) -> Option<Event> {
        match entry {
            JournalEntry::Counted { .. } => None,
            // Routers score prefixes by blocks of tokens; opaque objects have none.
            JournalEntry::Stored { model_id: ModelId::OPAQUE, .. }
            | JournalEntry::Removed { model_id: ModelId::OPAQUE, .. } => None,
            JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace, .. } => {
                let (row, parent) = (&entry.row, entry.parent_hash);
                let level = row.level_bytes.len().checked_sub(1).map(|top| Level(top as u8));
                Some(Event {
                    namespace: namespace.clone(),
                    level,
                    parent_hash: Some(parent.into()),
                    base_block_idx: Some(row.first_position / BLOCK_TOKENS as u64),
                    block_hashes: block_hashes.iter().map(hex).collect(),
                    seq_hash: Some(row.seq_hash),
                    object_digest: Some(row.object_digest),
                    ..self.event(EventType::Stored, tenant, replica, *model_id)
                })
            }
            JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason } => Some(Event {
                namespace: self.catalog.label(Scope::new(tenant, model_id), seq_hash, None),
                seq_hash: Some(*seq_hash),
                object_digest: Some(*object_digest),
                reason: Some(reason.as_str().to_owned()),
                ..self.event(EventType::Removed, tenant, replica, *model_id)
            }),
        }
    }

    fn event(&self, event_type: EventType, tenant: &Name, replica: &Name, model_id: ModelId) -> Event {
        let spec = self.catalog.known_model(tenant, &model_id);
        let model_name = spec.as_ref().map(|spec| spec.weights.clone());
        let lora_name = spec.and_then(|spec| spec.adapter.clone());
        Event { model_id: Some(model_id), model_name, lora_name, ..blank(event_type, tenant, replica) }
    }

    /// Tells this replica's readers of a model's profile: that it was stored (`stored`), or the outcome of a training
    /// that stored none.
    pub fn tell_profile(
        &self,
        tenant: &Name,
        model_id: ModelId,
        profile_hash: Option<ProfileHash>,
        reason: &str,
    ) {
        self.events.push(Event {
            profile_hash,
            reason: Some(reason.to_owned()),
            ..self.event(EventType::Profile, tenant, self.journal.replica(), model_id)
        });
    }

    /// The event that tells a reader that it missed events: discard the state and start again.
    pub fn cleared_event(&self, tenant: &Name) -> Arc<Event> {
        Arc::new(Event {
            event_id: self.events.now_id(),
            reason: Some("resumed_too_late".to_owned()),
            ..blank(EventType::Cleared, tenant, self.journal.replica())
        })
    }
}

fn hex(hash: &[u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(*hash))
}

/// Milliseconds since 1970 by this replica's clock: for people and logs, never for decisions.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An event with only its type, tenant and time; the log assigns its id.
fn blank(event_type: EventType, tenant: &Name, replica: &Name) -> Event {
    Event {
        event_id: String::new(),
        timestamp_ms: now_ms(),
        event_type,
        tenant_id: tenant.clone(),
        namespace: None,
        model_id: None,
        model_name: None,
        lora_name: None,
        block_size: BLOCK_TOKENS as u32,
        backend_id: replica.clone(),
        medium: Medium::Object,
        level: None,
        seq_hash: None,
        object_digest: None,
        profile_hash: None,
        parent_hash: None,
        base_block_idx: None,
        block_hashes: Vec::new(),
        reason: None,
    }
}
