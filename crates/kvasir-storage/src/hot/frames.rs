//! The division of an object into frames, and the verification of their bytes.

use std::ops::Range;

use kvasir_container::{ChunkHeader, Head};
use kvasir_store::layout::ChunkKey;
use kvasir_types::{Level, Name, ObjectDigest, SeqHash};

use crate::{error::ChunkError, index::Scope, limits};

/// Bytes of an object's id that name its chunk; the others name the object.
const CHUNK_ID_BYTES: usize = 6;

/// Names a frame: the object in its tenant's space, and the frame's number from the object's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameKey {
    /// The object: 6 bytes shared by all objects of its chunk, and 10 of its own.
    pub object: [u8; 16],
    /// The frame.
    pub frame: u32,
}

impl FrameKey {
    /// The first frame of an object. It contains the head, and so locates all others.
    pub fn first(key: &ChunkKey) -> Self {
        Self::first_of(Scope::new(&key.tenant, &key.model_id), &key.seq_hash, &key.object_digest)
    }

    /// Like [`first`](Self::first), in a known scope. seq_hash and digest are already hashes, and a lookup
    /// needs many, so they are truncated rather than hashed again; the scope separates the names that tenants
    /// can choose.
    pub(crate) fn first_of(scope: Scope, seq_hash: &SeqHash, object_digest: &ObjectDigest) -> Self {
        let mut object = [0; 16];
        let (of_chunk, own) = object.split_at_mut(CHUNK_ID_BYTES);
        of_chunk.copy_from_slice(&seq_hash.as_bytes()[..CHUNK_ID_BYTES]);
        own.copy_from_slice(&object_digest.as_bytes()[..16 - CHUNK_ID_BYTES]);
        object.iter_mut().zip(scope.as_bytes().iter().cycle()).for_each(|(byte, of_scope)| *byte ^= of_scope);
        Self { object, frame: 0 }
    }
}

impl FrameKey {
    /// The same number for all frames of an object.
    pub(super) fn of_object(&self) -> u64 {
        u64::from_le_bytes(self.object[CHUNK_ID_BYTES..CHUNK_ID_BYTES + 8].try_into().expect("8 of 10 bytes"))
    }
}

/// Size and checksum of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PieceChecksum {
    bytes: u32,
    crc32c: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    start: u64,
    first_piece: u32,
    level: u8,
}

/// An object as divided by the hot tier: runs of whole pieces of one level, with their checksums.
#[derive(Debug, Clone, PartialEq)]
pub struct HotObject {
    key: ChunkKey,
    first: FrameKey,
    header: ChunkHeader,
    frames: Vec<Frame>,
    /// The head, then the pieces in order.
    pieces: Vec<PieceChecksum>,
    level_bytes: Vec<u64>,
}

impl HotObject {
    /// The object `key`, whose verified head is `head`.
    pub fn new(key: &ChunkKey, head: &Head) -> Self {
        let level_bytes = (0..head.header.level_count).filter_map(|level| head.level_bytes(Level(level)));
        let mut this = Self {
            key: key.clone(),
            first: FrameKey::first(key),
            header: head.header.clone(),
            frames: Vec::new(),
            pieces: Vec::new(),
            level_bytes: level_bytes.collect(),
        };
        let head_bytes = u32::try_from(head.header.head_bytes()).unwrap_or(u32::MAX);
        this.add(PieceChecksum { bytes: head_bytes, crc32c: 0 }, 0, 0);
        for (section, _, entry) in head.pieces() {
            let level = head.sections().get(section).map_or(0, |id| id.level.0);
            let bytes = u32::try_from(entry.range.end - entry.range.start).unwrap_or(u32::MAX);
            this.add(PieceChecksum { bytes, crc32c: entry.crc32c }, entry.range.start, level);
        }
        this
    }

    /// Appends a piece: to the last frame, or to a new one if a level begins or the last one is full.
    fn add(&mut self, piece: PieceChecksum, start: u64, level: u8) {
        let end = start + u64::from(piece.bytes);
        let fits = |last: &&Frame| last.level == level && end - last.start <= limits::HOT_FRAME_BYTES;
        if self.frames.last().filter(fits).is_none() {
            self.frames.push(Frame { start, first_piece: self.pieces.len() as u32, level });
        }
        self.pieces.push(piece);
    }

    /// Number of its pieces, with its head.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Which object this is.
    pub fn chunk(&self) -> &ChunkKey {
        &self.key
    }

    /// The tenant.
    pub fn tenant(&self) -> &Name {
        &self.key.tenant
    }

    /// Its header.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// Size of the object.
    pub fn bytes(&self) -> u64 {
        self.header.object_bytes()
    }

    /// Number of levels that the first `bytes` of it decode to.
    pub fn levels_within(&self, bytes: u64) -> usize {
        self.level_bytes.partition_point(|level| *level <= bytes)
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    /// The key of a frame.
    pub fn key(&self, frame: u32) -> FrameKey {
        FrameKey { frame, ..self.first }
    }

    /// The bytes of a frame, as offsets into the object.
    pub fn range(&self, frame: u32) -> Range<u64> {
        let start = |frame: usize| self.frames.get(frame).map_or(self.bytes(), |frame| frame.start);
        start(frame as usize)..start(frame as usize + 1)
    }

    /// The level that a frame belongs to. The head counts as level 0.
    pub fn level(&self, frame: u32) -> u8 {
        self.frames.get(frame as usize).map_or(0, |frame| frame.level)
    }

    /// The frames that contain any byte of a range.
    pub fn frames_of(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() || range.start >= self.bytes() {
            return 0..0;
        }
        let first = self.frames.partition_point(|frame| frame.start <= range.start) - 1;
        let end = self.frames.partition_point(|frame| frame.start < range.end);
        first as u32..end as u32
    }

    /// Whether `content` matches the head's description of a frame: every checksum in it, and the head
    /// itself.
    pub fn verify(&self, frame: u32, content: &[u8]) -> bool {
        let piece_of = |frame: u32| self.frames.get(frame as usize).map(|frame| frame.first_piece as usize);
        let Some(first) = piece_of(frame) else { return false };
        let end = piece_of(frame + 1).unwrap_or(self.pieces.len());
        let mut rest = content;
        for number in first..end {
            let PieceChecksum { bytes, crc32c } = self.pieces[number];
            let Some((piece, behind)) = rest.split_at_checked(bytes as usize) else { return false };
            let sound = match number {
                0 => Head::parse(piece).is_ok_and(|head| head.header == self.header),
                _ => crc32c::crc32c(piece) == crc32c,
            };
            if !sound {
                return false;
            }
            rest = behind;
        }
        rest.is_empty()
    }

    /// The error for bytes that do not match the object's head.
    pub(super) fn corrupt(&self, frame: u32) -> ChunkError {
        ChunkError::Corrupt {
            seq_hash: self.key.seq_hash,
            object_digest: self.key.object_digest,
            reason: format!("bytes {:?} do not match the checksums in its directory", self.range(frame)),
        }
    }
}
