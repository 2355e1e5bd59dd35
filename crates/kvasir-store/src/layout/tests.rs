use kvasir_types::ObjectKey;
use proptest::prelude::*;

use super::*;

fn any_chunk() -> impl Strategy<Value = ChunkKey> {
    (any_name(), any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(
        |(tenant, model, seq, object)| ChunkKey {
            tenant,
            model_id: model.into(),
            seq_hash: seq.into(),
            object_digest: object.into(),
        },
    )
}

fn any_name() -> impl Strategy<Value = Name> {
    "[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,40}".prop_map(|s| s.parse().expect("of the alphabet"))
}

fn any_listed() -> impl Strategy<Value = ListedKey> {
    // 125 bytes fill a segment.
    let key = "[a-c/ä]{1,6}|[ -~]{1,512}|a{125}[ab]{0,2}|a{250}[ab]{0,2}"
        .prop_filter_map("a dot is none", |key| key.parse().ok());
    (any_name(), any_name(), key, any::<[u8; 32]>()).prop_map(
        |(tenant, namespace, key, object): (_, _, ObjectKey, [u8; 32])| ListedKey {
            tenant,
            namespace,
            key,
            object_digest: object.into(),
        },
    )
}

fn any_key() -> impl Strategy<Value = Key> {
    let id = || any::<[u8; 32]>();
    prop_oneof![
        any_chunk().prop_map(Key::Chunk),
        any_chunk().prop_map(Key::Tombstone),
        any_chunk().prop_map(Key::Gone),
        (any_name(), id()).prop_map(|(tenant, m)| Key::Spec { tenant, model_id: m.into() }),
        (any_name(), id(), id()).prop_map(|(tenant, m, p)| Key::Profile {
            tenant,
            model_id: m.into(),
            profile_hash: p.into()
        }),
        (any_name(), any::<u128>(), any::<u64>()).prop_map(|(tenant, c, version)| Key::Context {
            tenant,
            context_id: Uuid::from_u128(c),
            version
        }),
        (any_chunk(), any::<u128>(), any::<u64>(), id()).prop_map(|(chunk, upload, bytes, sha256)| {
            Key::Upload(UploadKey { chunk, upload_id: Uuid::from_u128(upload), bytes, sha256 })
        }),
        (any_name(), any::<u128>(), any::<u16>(), any::<u64>(), id()).prop_map(
            |(tenant, upload, number, bytes, digest)| Key::Part(PartKey {
                tenant,
                upload_id: Uuid::from_u128(upload),
                number,
                bytes,
                digest: digest.into()
            })
        ),
        any_listed().prop_map(Key::Listed),
        (any_name(), any_name()).prop_map(|(tenant, namespace)| Key::Namespace { tenant, namespace }),
        (any_name(), any::<[u8; 16]>(), any_name()).prop_map(|(tenant, id, wrapped_by)| Key::TenantKey {
            tenant,
            id,
            wrapped_by
        }),
        any_name().prop_map(|tenant| Key::Salt { tenant }),
        any_name().prop_map(|tenant| Key::TenantKeyChoice { tenant }),
        (any_name(), any::<u128>())
            .prop_map(|(tenant, id)| Key::SaltProposal { tenant, id: Uuid::from_u128(id) }),
        (any_name(), any_name(), any::<u128>()).prop_map(|(tenant, namespace, id)| Key::SaltRotation {
            tenant,
            namespace,
            id: Uuid::from_u128(id)
        }),
        (any_name(), 0u32..64, any::<u64>(), 0..JournalLog::ALL.len()).prop_map(
            |(replica, shift, n, log)| { Key::Journal { log: JournalLog::ALL[log], replica, n: n >> shift } }
        ),
        any::<u64>().prop_map(|n| Key::GcEpoch { n }),
        any::<u128>().prop_map(|id| Key::GcIntent(Uuid::from_u128(id))),
        any_name().prop_map(Key::GcUses),
        Just(Key::GcVictims),
        any::<u128>().prop_map(|id| Key::Probe(Uuid::from_u128(id))),
    ]
}

proptest! {
    #[test]
    fn every_key_round_trips_under_any_root(key in any_key(), root in "([a-z0-9]{1,8}(/[a-z0-9]{1,8}){0,2})?") {
        let layout = Layout::new(&Path::from(root.as_str()));
        let path = layout.path(&key);
        prop_assert_eq!(layout.parse(&path), Some(key));
        prop_assert_eq!(Layout::new(&Path::from("elsewhere")).parse(&path), None);
        prop_assert!(path.as_ref().starts_with(layout.base().as_ref()));
    }

    #[test]
    fn journal_batches_list_in_order(a: u64, b: u64) {
        let layout = Layout::new(&Path::default());
        let path = |n| layout.path(&Key::Journal { log: JournalLog::Stored, replica: "r".parse().expect("a name"), n });
        prop_assert_eq!(a.cmp(&b), path(a).cmp(&path(b)));
    }

    /// Whoever wrote them: a reader leaves out what is named by an earlier time.
    #[test]
    fn batches_of_removals_list_by_time(
        since in REMOVALS_TIMED_FROM..,
        n in REMOVALS_TIMED_FROM..,
        replica in any_name(),
    ) {
        let layout = Layout::new(&Path::default());
        let path = layout.path(&Key::Journal { log: JournalLog::Removed, replica, n });
        prop_assert_eq!(path > layout.removals_since(since), n >= since);
    }

    #[test]
    fn no_path_panics(path in "[ -~]{0,200}") {
        let _ = Layout::new(&Path::default()).parse(&Path::from(path));
    }
}

#[test]
fn the_design_s_keys() {
    let layout = Layout::new(&Path::from("kv"));
    let chunk = ChunkKey {
        tenant: "acme".parse().expect("a name"),
        model_id: [0xaa; 32].into(),
        seq_hash: [0xbb; 32].into(),
        object_digest: [0xcc; 32].into(),
    };
    let (m, s, o) = ("aa".repeat(32), "bb".repeat(32), "cc".repeat(32));
    assert_eq!(layout.path(&Key::Chunk(chunk)).as_ref(), format!("kv/2/t/acme/m/{m}/c/{s}/{o}.kvc"));
    let upper = format!("kv/2/t/acme/m/{m}/c/{s}/{}.kvc", "CC".repeat(32));
    assert_eq!(layout.parse(&Path::from(upper)), None);
}

proptest! {
    /// A store lists markers in the order of the bytes of their paths, and that is the order of the keys.
    #[test]
    fn markers_are_in_the_order_of_their_keys(a in any_listed(), b in any_listed(), cut in any::<prop::sample::Index>()) {
        let layout = Layout::new(&Path::default());
        let b = ListedKey { tenant: a.tenant.clone(), namespace: a.namespace.clone(), ..b };
        let path = |listed: &ListedKey| layout.path(&Key::Listed(listed.clone())).to_string();
        if a.key != b.key {
            prop_assert_eq!(path(&a).cmp(&path(&b)), a.key.cmp(&b.key));
        }
        // Whatever begins with a prefix is behind the prefix's place.
        let text = b.key.as_str();
        let cut = (0..=cut.index(text.len() + 1)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let start = ListedKey::key_prefix(&layout, &b.tenant, &b.namespace, &text[..cut]).to_string();
        prop_assert!(path(&b) > start);
    }
}
