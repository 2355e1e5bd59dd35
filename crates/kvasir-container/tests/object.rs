//! Properties of whole objects: round trip, detection of damage, independence of cuts.

use kvasir_container::{
    ChunkBuilder, ChunkMeta, ContainerError, EXTENSIONS_BYTES_MAX, Extension, HEADER_BYTES, Head, Measured,
    ObjectVerifier, SectionId,
};
use kvasir_types::{BLOCK_TOKENS, ChainLink, Level, LevelError};
use proptest::prelude::*;

/// One section: scope, band, flags, and its pieces.
type Section = (u16, u8, u8, Vec<Option<Vec<u8>>>);

#[derive(Debug, Clone)]
struct Chunk {
    meta: ChunkMeta,
    tokens: Vec<u32>,
    levels: Vec<Vec<Section>>,
    extensions: Vec<Extension>,
}

impl Chunk {
    fn build(&self) -> Result<Vec<u8>, ContainerError> {
        let mut builder = ChunkBuilder::new(self.meta.clone(), self.tokens.clone())?;
        for (level, sections) in self.levels.iter().enumerate() {
            for (index, (scope, band, flags, pieces)) in sections.iter().enumerate() {
                // the index keeps identities distinct
                let scope = scope.wrapping_mul(8).wrapping_add(index as u16);
                let id = SectionId { scope, band: *band, level: Level(level as u8), flags: *flags };
                builder.section(id, pieces.clone())?;
            }
        }
        for extension in &self.extensions {
            builder.extension(extension)?;
        }
        builder.finish()
    }
}

fn chunk(tokens_max: usize, piece_max: usize) -> impl Strategy<Value = Chunk> {
    let sizes = (1..=tokens_max, 1usize..=4);
    sizes.prop_flat_map(move |(count, levels)| {
        let spans = count.div_ceil(256);
        let piece = prop::option::of(prop::collection::vec(any::<u8>(), 1..=piece_max));
        let pieces = prop::collection::vec(piece, spans);
        let section = (any::<u16>(), any::<u8>(), any::<u8>(), pieces);
        let meta = (
            any::<[u8; 32]>(),
            any::<[u8; 32]>(),
            any::<([u8; 32], [u8; 32])>(),
            any::<u32>(),
            any::<Option<u32>>(),
            0.0f32..9.0,
            0..=count.min(16),
        );
        let tokens = prop::collection::vec(prop_oneof![0u32..4096, any::<u32>()], count);
        let levels = prop::collection::vec(prop::collection::vec(section, 0..4), levels);
        let data = prop::collection::vec(any::<u8>(), 0..50);
        let extensions = prop::collection::btree_map(4u16.., data, 0..4);
        (meta, tokens, levels, extensions).prop_map(|(meta, tokens, levels, extensions)| {
            let (model, profile, (key, parent), first, preceding_token, kl_beneath, exact) = meta;
            let meta = ChunkMeta {
                first_position: first.into(),
                preceding_token,
                level_count: levels.len() as u8,
                exact_tokens: exact as u8,
                kl_beneath,
                ..ChunkMeta::new(model.into(), profile.into(), ChainLink { key: key.into(), parent })
            };
            let extension = |(kind, data)| Extension { kind, required: false, data };
            Chunk { meta, tokens, levels, extensions: extensions.into_iter().map(extension).collect() }
        })
    })
}

/// The verdict on bytes that arrive cut at the given sizes (cycled).
fn verify(bytes: &[u8], cuts: &[usize]) -> Result<Head, ContainerError> {
    let mut verifier = ObjectVerifier::new();
    let mut rest = bytes;
    for &cut in cuts.iter().cycle() {
        let (now, later) = rest.split_at(cut.min(rest.len()));
        verifier.push(now)?;
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    verifier.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_built_is_read_back(chunk in chunk(700, 90)) {
        let object = chunk.build().unwrap();
        let head = Head::parse(&object).unwrap();
        prop_assert_eq!(&head.tokens, &chunk.tokens);
        prop_assert_eq!(head.header.preceding_token, chunk.meta.preceding_token);
        prop_assert_eq!(head.header.kl_beneath, chunk.meta.kl_beneath);
        prop_assert_eq!(head.header.link(), chunk.meta.link);
        prop_assert_eq!(&head.extensions, &chunk.extensions);
        prop_assert_eq!(head.block_hashes.len(), chunk.tokens.len().div_ceil(BLOCK_TOKENS));
        head.verify_chain().unwrap();
        let mut at = head.header.head_bytes();
        let sections: Vec<_> = chunk.levels.iter().flatten().collect();
        prop_assert_eq!(sections.len(), head.sections().len());
        for (section, (_, band, flags, pieces)) in sections.iter().enumerate() {
            prop_assert_eq!(head.sections()[section].band, *band);
            prop_assert_eq!(head.sections()[section].flags, *flags);
            for (span, piece) in pieces.iter().enumerate() {
                let entry = head.piece(section, span);
                prop_assert_eq!(entry.is_some(), piece.is_some());
                let (Some(entry), Some(piece)) = (entry, piece) else { continue };
                prop_assert_eq!(entry.range.start, at); // no padding, no gaps
                let stored = &object[entry.range.start as usize..entry.range.end as usize];
                prop_assert_eq!(stored, &piece[..]);
                head.check_piece(section, span, stored).unwrap();
                at = entry.range.end;
            }
        }
        prop_assert_eq!(at, object.len() as u64);
        prop_assert_eq!(head.pieces().count(), sections.iter().flat_map(|s| &s.3).flatten().count());
    }

    #[test]
    fn a_level_is_a_byte_prefix(chunk in chunk(600, 40), cut in any::<prop::sample::Index>()) {
        let object = chunk.build().unwrap();
        let head = Head::parse(&object).unwrap();
        let levels = chunk.levels.len() as u8;
        let prefix = cut.index(object.len() + 1) as u64;
        let whole = |level: Level| {
            head.pieces().all(|(section, _, e)| head.sections()[section].level > level || e.range.end <= prefix)
                && prefix >= head.header.head_bytes()
        };
        let best = (0..levels).map(Level).rev().find(|&l| whole(l));
        prop_assert_eq!(head.best_level(prefix), best);
        prop_assert_eq!(head.level_bytes(Level(levels - 1)), Some(object.len() as u64));
        prop_assert_eq!(head.level_bytes(Level(levels)), None);
    }

    #[test]
    fn every_cut_gives_the_same_verdict(
        chunk in chunk(300, 40), cuts in prop::collection::vec(1usize..300, 1..20),
        damage in prop::option::of((any::<prop::sample::Index>(), 1u8..)), keep in any::<prop::sample::Index>(),
    ) {
        let mut object = chunk.build().unwrap();
        if let Some((at, flip)) = damage {
            let at = at.index(object.len());
            object[at] ^= flip;
        }
        let object = &object[..=keep.index(object.len())];
        let whole = verify(object, &[object.len()]);
        prop_assert_eq!(&whole, &verify(object, &cuts));
        prop_assert_eq!(&whole, &verify(object, &[1]));
    }

    #[test]
    fn strangers_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), seal in any::<bool>()) {
        if seal && bytes.len() >= HEADER_BYTES {
            bytes[..6].copy_from_slice(b"KVSC\x01\x01");
            let crc = crc32c::crc32c(&bytes[..252]);
            bytes[252..256].copy_from_slice(&crc.to_le_bytes());
        }
        prop_assert!(Head::parse(&bytes).is_err());
        prop_assert!(verify(&bytes, &[7]).is_err());
    }

    /// Fields out of their limits behind a valid checksum: what an attacker, not a bad disk, produces.
    #[test]
    fn sealed_lies_never_panic_or_pass_as_another_object(
        chunk in chunk(300, 20), at in 6usize..252, value in any::<u8>(),
    ) {
        let mut object = chunk.build().unwrap();
        prop_assume!(object[at] != value);
        object[at] = value;
        let crc = crc32c::crc32c(&object[..252]);
        object[252..256].copy_from_slice(&crc.to_le_bytes());
        let first = verify(&object, &[object.len()]);
        prop_assert_eq!(&first, &verify(&object, &[13]));
        if let Ok(head) = first {
            prop_assert_eq!(head.header.object_bytes(), object.len() as u64);
        }
    }
}

fn small() -> Vec<u8> {
    let section = |n: u8| (u16::from(n), 0, n, vec![Some(vec![n; 9]), (n != 1).then(|| vec![n, 2])]);
    let meta = ChunkMeta {
        preceding_token: Some(5),
        level_count: 2,
        ..ChunkMeta::new([1; 32].into(), [2; 32].into(), ChainLink::first([3; 32].into()))
    };
    let tokens = (0..270).map(|i| i * i).collect();
    let extensions = vec![Extension { kind: 7, required: false, data: vec![1, 2, 3] }];
    Chunk { meta, tokens, levels: vec![vec![section(0), section(1)], vec![section(2)]], extensions }
        .build()
        .expect("a legal chunk")
}

#[test]
fn every_truncation_is_detected() {
    let object = small();
    for length in 0..object.len() {
        let error = verify(&object[..length], &[64]).unwrap_err();
        assert!(matches!(error, ContainerError::Truncated { .. }), "{length}: {error}");
    }
    let longer = [&object[..], &[0]].concat();
    assert!(matches!(verify(&longer, &[64]), Err(ContainerError::Trailing { .. })));
    assert!(verify(&object, &[64]).is_ok());
}

#[test]
fn every_single_byte_corruption_is_detected() {
    let object = small();
    for at in 0..object.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = object.clone();
            bad[at] ^= flip;
            assert!(verify(&bad, &[object.len()]).is_err(), "byte {at} ^ {flip:#x} went unnoticed");
        }
    }
}

#[test]
fn a_foreign_chain_is_detected() {
    let object = small();
    let mut head = Head::parse(&object).unwrap();
    head.verify_chain().unwrap();
    head.tokens[20] ^= 1;
    assert_eq!(head.verify_chain(), Err(ContainerError::Chain { block: 1 }));
    head.tokens[20] ^= 1;
    let key = std::mem::replace(&mut head.header.chain_key, [9; 32].into());
    assert_eq!(head.verify_chain(), Err(ContainerError::Chain { block: 0 }));
    head.header.chain_key = key;
    head.header.seq_hash = [9; 32].into();
    assert_eq!(head.verify_chain(), Err(ContainerError::Chain { block: 16 }));
}

#[test]
fn builders_refuse_what_readers_would() {
    let meta = ChunkMeta::new([1; 32].into(), [2; 32].into(), ChainLink::first([3; 32].into()));
    let id = |level| SectionId { scope: 0, band: 0, level: Level(level), flags: 0 };
    assert!(ChunkBuilder::new(meta.clone(), vec![]).is_err());
    assert!(ChunkBuilder::new(meta.clone(), vec![0; 16_385]).is_err());
    for broken in [
        ChunkMeta { level_count: 0, ..meta.clone() },
        ChunkMeta { level_count: 9, ..meta.clone() },
        ChunkMeta { exact_tokens: 17, ..meta.clone() },
        ChunkMeta { exact_tokens: 2, ..meta.clone() },
        ChunkMeta { kl_beneath: f32::NAN, ..meta.clone() },
        ChunkMeta { kl_beneath: -1.0, ..meta.clone() },
        ChunkMeta { first_position: u64::MAX, ..meta.clone() },
    ] {
        assert!(ChunkBuilder::new(broken.clone(), vec![1]).is_err(), "{broken:?}");
    }
    let build = |ids: &[SectionId]| {
        let mut builder = ChunkBuilder::new(ChunkMeta { level_count: 2, ..meta.clone() }, vec![1]).unwrap();
        for id in ids {
            builder.section(*id, vec![None]).unwrap();
        }
        builder.finish()
    };
    assert!(build(&[id(0), id(1)]).is_ok());
    assert!(matches!(build(&[id(1), id(0)]), Err(ContainerError::SectionOrder { section: 1, .. })));
    assert!(matches!(build(&[id(0), id(0)]), Err(ContainerError::SectionOrder { section: 1, .. })));
    assert!(matches!(build(&[id(2)]), Err(ContainerError::SectionOrder { section: 0, .. })));
    let mut builder = ChunkBuilder::new(meta, vec![1]).unwrap();
    assert!(builder.section(id(0), vec![]).is_err());
    assert!(builder.section(id(0), vec![Some(vec![])]).is_err());
}

#[test]
fn extensions_are_skipped_or_refuse() {
    let built = |extensions: &[(u16, bool, usize)]| {
        let meta = ChunkMeta::new([1; 32].into(), [2; 32].into(), ChainLink::first([3; 32].into()));
        let mut builder = ChunkBuilder::new(meta, vec![1])?;
        for &(kind, required, bytes) in extensions {
            builder.extension(&Extension { kind, required, data: vec![5; bytes] })?;
        }
        builder.finish()
    };
    let parsed = |extensions| built(extensions).and_then(|object| Head::parse(&object));
    let head = parsed(&[(0, false, 0), (9, false, 3)]).expect("skipped");
    assert_eq!(head.extensions.iter().map(|e| e.data.len()).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(parsed(&[(5, false, 1), (9, true, 0)]), Err(ContainerError::Extension { kind: 9 }));
    for twice in [[(5, false, 0), (5, false, 0)], [(6, false, 0), (5, false, 0)]] {
        assert_eq!(built(&twice), Err(ContainerError::ExtensionOrder { kind: 5 }));
    }
    assert!(parsed(&[(5, false, EXTENSIONS_BYTES_MAX - 8)]).is_ok());
    assert!(matches!(
        built(&[(5, false, EXTENSIONS_BYTES_MAX - 7)]),
        Err(ContainerError::Field { field: "extension_bytes", .. })
    ));
}

fn measured() -> impl Strategy<Value = Measured> {
    let errors = (2usize..=3, 1usize..20).prop_flat_map(|(levels, planes)| {
        let plane = any::<u8>().prop_map(LevelError::from_byte);
        prop::collection::vec(prop::collection::vec(plane, planes), levels)
    });
    (any::<u8>(), any::<u8>(), errors).prop_map(|(beneath, hops, levels)| Measured {
        beneath: LevelError::from_byte(beneath),
        hops,
        levels,
    })
}

fn with_extension(extension: &Extension) -> Vec<u8> {
    let link = ChainLink::first([1; 32].into());
    let meta = ChunkMeta { level_count: 3, ..ChunkMeta::new([2; 32].into(), [3; 32].into(), link) };
    let mut builder = ChunkBuilder::new(meta, vec![7; 20]).expect("within the limits");
    builder.extension(extension).expect("the first");
    builder.finish().expect("within the limits")
}

proptest! {
    #[test]
    fn what_was_measured_is_read_back(measured in measured()) {
        let head = Head::parse(&with_extension(&measured.to_extension())).unwrap();
        prop_assert_eq!(head.measured(), Some(&measured));
        for level in 0..4 {
            let worst = measured.levels.get(level).map(|planes| *planes.iter().max().expect("some"));
            prop_assert_eq!(measured.error(Level(level as u8)), worst.unwrap_or(LevelError::NONE));
        }
    }

    #[test]
    fn a_measure_of_another_form_is_refused(data in prop::collection::vec(any::<u8>(), 0..40)) {
        let object = with_extension(&Extension { kind: Measured::KIND, required: false, data: data.clone() });
        let levels = data.get(2).map_or(0, |levels| usize::from(*levels));
        let errors = data.len().saturating_sub(4);
        let fits = if levels == 0 { errors == 0 } else { errors > 0 && errors % levels == 0 };
        let is_sound = data.len() >= 4 && (2..=3).contains(&levels) && data[3] == 0 && fits;
        prop_assert_eq!(Head::parse(&object).is_ok(), is_sound);
    }
}

#[test]
fn errors_of_all_lossy_levels_are_said() {
    let parsed = |levels| {
        let levels = vec![vec![LevelError::UNKNOWN; 2]; levels];
        let measured = Measured { beneath: LevelError::NONE, hops: 0, levels };
        Head::parse(&with_extension(&measured.to_extension()))
    };
    // Of three levels, the finest may be exact.
    for said in [2, 3] {
        assert_eq!(parsed(said).unwrap().measured().unwrap().error(Level(1)), LevelError::UNKNOWN);
    }
    for said in [0, 1] {
        assert!(
            matches!(parsed(said), Err(ContainerError::Field { field: "measured.levels", .. })),
            "{said}"
        );
    }
}
