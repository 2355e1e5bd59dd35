//! Assembles a chunk object from bytes that arrive in any order, and verifies each piece as it completes.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use kvasir_api::ChunkMatch;
use kvasir_codec::container::{HEADER_BYTES, Head, PieceEntry};
use kvasir_types::{Level, SPAN_TOKENS, TokenChain};

use super::byte_ranges::RangeSet;

/// The tokens of a load. Every object is checked against them; the service is not trusted.
#[derive(Debug, Clone)]
pub(super) struct ExpectedTokens {
    pub(super) tokens: Arc<Vec<u32>>,
    pub(super) chain: Arc<TokenChain>,
}

impl ExpectedTokens {
    /// The object must contain exactly these tokens, after exactly this prefix.
    fn check(&self, object: &ChunkMatch, head: &Head) -> Result<(), String> {
        let first = object.first_token as usize;
        let matched = object.matched_tokens as usize;
        let ours = self.tokens.get(first..first + matched);
        let wrong = if ours.is_none() || head.tokens.get(..matched) != ours {
            "it contains other tokens"
        } else if self.chain.link(first) != Some(head.header.link()) {
            "it continues another prefix"
        } else if head.header.first_position != object.first_token {
            "its KV belongs to other positions"
        } else if head.header.profile_hash != object.profile_hash {
            "its profile is not the one that the lookup named"
        } else if head.header.object_bytes() != object.bytes {
            "its size is not the one that the lookup named"
        } else {
            return head.verify_chain().map_err(|e| e.to_string());
        };
        Err(wrong.into())
    }
}

/// Whether a piece has passed its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceStatus {
    Pending,
    Valid,
    Corrupt,
}

/// A piece of the object and whether it is verified.
#[derive(Debug)]
struct ObjectPiece {
    section: usize,
    level: Level,
    span: usize,
    range: Range<u64>,
    status: PieceStatus,
}

#[derive(Debug)]
enum HeadState {
    Pending,
    /// Arrived in full and corrupt; it is read once more.
    Corrupt,
    Valid(Arc<Head>),
}

/// One object of a load. Bytes may arrive in any order. Each piece is checked against its CRC as soon as it
/// is complete, while later ones are in transfer.
#[derive(Debug)]
pub(super) struct ObjectAssembly {
    object: ChunkMatch,
    /// The coarsest level at which a span may be decoded.
    floor: Level,
    bytes: Vec<u8>,
    arrived: RangeSet,
    head: HeadState,
    /// In byte order.
    pieces: Vec<ObjectPiece>,
}

/// A defect in bytes that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// The object is not the requested one, or its head is damaged: without a valid head nothing is usable.
    Head {
        /// The position of the head.
        range: Range<u64>,
        /// What is wrong.
        what: String,
    },
    /// A piece, or several in a row, failed their checksums.
    Piece {
        /// Their position.
        range: Range<u64>,
        /// The first failure.
        what: String,
    },
}

/// The verified part of a chunk, ready to decode.
#[derive(Debug, Clone)]
pub(super) struct VerifiedChunk {
    pub(super) head: Arc<Head>,
    pub(super) bytes: Bytes,
    /// Tokens of the chunk and the level at which they can be decoded; `None` if they cannot. In order,
    /// adjacent ones joined.
    pub(super) runs: Vec<(Range<usize>, Option<Level>)>,
}

impl ObjectAssembly {
    pub(super) fn new(object: ChunkMatch, floor: Level) -> Self {
        Self {
            object,
            floor,
            bytes: Vec::new(),
            arrived: RangeSet::default(),
            head: HeadState::Pending,
            pieces: Vec::new(),
        }
    }

    pub(super) const fn object(&self) -> &ChunkMatch {
        &self.object
    }

    /// The parts of `0..end` that have not arrived.
    pub(super) fn missing(&self, end: u64) -> Vec<Range<u64>> {
        self.arrived.missing(end)
    }

    /// Inserts bytes at `offset` and checks the pieces that they complete. Returns the number of new bytes,
    /// and the defects.
    pub(super) fn insert(
        &mut self,
        offset: u64,
        bytes: &[u8],
        expected: &ExpectedTokens,
    ) -> (u64, Vec<Defect>) {
        let end = offset.saturating_add(bytes.len() as u64).min(self.object.bytes);
        let range = offset..end.max(offset);
        let (whole, fresh) = self.arrived.insert(range.clone());
        let (start, stop) = (range.start as usize, range.end as usize);
        if self.bytes.len() < stop {
            self.bytes.resize(stop, 0);
        }
        self.bytes[start..stop].copy_from_slice(&bytes[..stop - start]);
        let mut defects = Vec::new();
        let head = self.head_range();
        match &self.head {
            HeadState::Valid(_) => self.check_pieces(&whole, &range, &mut defects),
            // Only after all of it was overwritten.
            HeadState::Corrupt if range.start >= head.end || range.end < head.end => {}
            _ if !self.arrived.contains(&head) => {}
            HeadState::Pending | HeadState::Corrupt => match self.read_head(&head, expected) {
                Ok(head) => {
                    self.set_head(head);
                    // All bytes that came before the head can now be checked.
                    for whole in self.arrived.iter().cloned().collect::<Vec<_>>() {
                        self.check_pieces(&whole, &(0..u64::MAX), &mut defects);
                    }
                }
                Err(what) => {
                    self.head = HeadState::Corrupt;
                    defects.push(Defect::Head { range: head, what });
                }
            },
        }
        (fresh, defects)
    }

    fn head_range(&self) -> Range<u64> {
        0..self.object.head_bytes.max(HEADER_BYTES as u64)
    }

    fn read_head(&self, range: &Range<u64>, expected: &ExpectedTokens) -> Result<Head, String> {
        let bytes = self.bytes.get(..range.end as usize).ok_or("it is shorter than its head")?;
        let head = Head::parse(bytes).map_err(|e| e.to_string())?;
        expected.check(&self.object, &head)?;
        Ok(head)
    }

    fn set_head(&mut self, head: Head) {
        let of = |(section, span, entry): (usize, usize, PieceEntry)| ObjectPiece {
            section,
            level: head.sections()[section].level,
            span,
            range: entry.range,
            status: PieceStatus::Pending,
        };
        self.pieces = head.pieces().map(of).collect();
        self.head = HeadState::Valid(Arc::new(head));
    }

    /// Checks the pieces that are within `whole` (all of it arrived) and have bytes in `fresh`.
    fn check_pieces(&mut self, whole: &Range<u64>, fresh: &Range<u64>, defects: &mut Vec<Defect>) {
        let HeadState::Valid(head) = &self.head else { return };
        let first = self.pieces.partition_point(|p| p.range.end <= fresh.start.max(whole.start));
        for piece in &mut self.pieces[first..] {
            if piece.range.start >= fresh.end || piece.range.end > whole.end {
                break;
            }
            // A second read overwrites a damaged piece in order: it can be whole again with its last byte.
            let is_half_read = piece.status == PieceStatus::Corrupt && fresh.end < piece.range.end;
            if piece.range.start < whole.start || piece.status == PieceStatus::Valid || is_half_read {
                continue;
            }
            let bytes = &self.bytes[piece.range.start as usize..piece.range.end as usize];
            match head.check_piece(piece.section, piece.span, bytes) {
                Ok(()) => piece.status = PieceStatus::Valid,
                Err(error) => {
                    piece.status = PieceStatus::Corrupt;
                    match defects.last_mut() {
                        // Of a whole response that was wrong: one read repairs it.
                        Some(Defect::Piece { range, .. }) if range.end == piece.range.start => {
                            range.end = piece.range.end;
                        }
                        _ => {
                            let range = piece.range.clone();
                            defects.push(Defect::Piece { range, what: error.to_string() });
                        }
                    }
                }
            }
        }
    }

    /// Everything verified so far, each span at the best level that its pieces allow, but at most `level`. Takes the
    /// bytes: no more can arrive for this chunk.
    pub(super) fn finish(&mut self, level: Level) -> Option<VerifiedChunk> {
        let HeadState::Valid(head) = &self.head else { return None };
        let head = Arc::clone(head);
        let matched = self.object.matched_tokens as usize;
        let mut runs: Vec<(Range<usize>, Option<Level>)> = Vec::new();
        for span in 0..matched.div_ceil(SPAN_TOKENS) {
            let tokens = span * SPAN_TOKENS..((span + 1) * SPAN_TOKENS).min(matched);
            let best = self.level_of(span, level);
            match runs.last_mut().filter(|(_, level)| *level == best) {
                Some((run, _)) => run.end = tokens.end,
                None => runs.push((tokens, best)),
            }
        }
        Some(VerifiedChunk { head, bytes: std::mem::take(&mut self.bytes).into(), runs })
    }

    fn level_of(&self, span: usize, most: Level) -> Option<Level> {
        let bad = |p: &&ObjectPiece| p.span == span && p.status != PieceStatus::Valid;
        let best = match self.pieces.iter().filter(bad).map(|p| p.level).min() {
            None => most,
            Some(Level(first_bad)) => most.min(Level(first_bad.checked_sub(1)?)),
        };
        (best >= self.floor).then_some(best)
    }
}
