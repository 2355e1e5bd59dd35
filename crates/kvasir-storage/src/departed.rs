//! How what a lookup matches left the hot tier: the part of `explain` that is about speed.

use std::collections::BTreeMap;

use kvasir_api::{Departure, LookupResponse};
use kvasir_types::{Medium, ModelId, Name};

use crate::{Storage, hot, layout::ChunkKey, limits};

impl Storage {
    /// How the chunks of an answer left this replica's memory and disk, in the order of the context. One entry for each
    /// chunk and medium, at most [`limits::DEPARTURES_LISTED_MAX`].
    pub(crate) fn departed(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        found: &LookupResponse,
    ) -> Vec<Departure> {
        let Some(front) = &self.hot else { return Vec::new() };
        let away: Vec<_> = found.chunks.iter().filter(|chunk| chunk.medium != Medium::Cpu).collect();
        let keys: Vec<ChunkKey> = away
            .iter()
            .map(|chunk| ChunkKey {
                tenant: tenant.clone(),
                model_id: *model_id,
                seq_hash: chunk.seq_hash,
                object_digest: chunk.object_digest,
            })
            .collect();
        let mut departures: BTreeMap<(usize, bool), Departure> = BTreeMap::new();
        for (place, left) in front.tier().departures_of(&keys) {
            // The latest comes first and says when and why; what went before it adds its bytes.
            let entry = departures.entry((place, left.medium == Medium::Disk)).or_insert_with(|| Departure {
                now_in: away[place].medium,
                ..described(front, away[place].seq_hash, &left)
            });
            entry.level = entry.level.min(left.level);
            entry.bytes += left.bytes;
        }
        departures.into_values().take(limits::DEPARTURES_LISTED_MAX).collect()
    }
}

fn described(front: &hot::HotFront, seq_hash: kvasir_types::SeqHash, left: &hot::Departure) -> Departure {
    let class = front.requests().class(left.class);
    let millis = |seconds: f64| (seconds * 1e3) as u64;
    Departure {
        seq_hash,
        medium: left.medium,
        now_in: Medium::Object,
        reason: left.reason.as_str().to_owned(),
        level: left.level,
        bytes: 0,
        ago_ms: millis(left.seconds_ago),
        age_ms: millis(left.age_seconds),
        idle_ms: millis(left.idle_seconds),
        request_type: class.as_ref().map_or_else(String::new, |class| class.kind.clone()),
        turn: class.map_or_else(String::new, |class| class.turn.label().to_owned()),
    }
}
