//! Verification of a whole object as it streams by.

use std::cmp::min;

use crate::{
    error::{ContainerError, Part},
    fields::wide,
    head::Head,
    header::ChunkHeader,
    limits::HEADER_BYTES,
};

/// Verifies an object that arrives in any cuts: header, directory, tokens, every piece's checksum, total length.
///
/// Holds at most a head ([`HEAD_BYTES_MAX`](crate::HEAD_BYTES_MAX)) and never a piece. After an error every further
/// call returns that error.
#[derive(Debug, Default)]
pub struct ObjectVerifier {
    /// Bytes of the head until it is complete.
    buffer: Vec<u8>,
    header: Option<ChunkHeader>,
    head: Option<Head>,
    /// Bytes taken so far.
    seen: u64,
    /// The piece being read, as an index over (section, span).
    piece: usize,
    /// CRC and remaining bytes of that piece.
    crc: u32,
    left: u64,
    failed: Option<ContainerError>,
}

impl ObjectVerifier {
    /// A verifier that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the object.
    ///
    /// # Errors
    /// The first defect of the object, at the latest with the byte that completes the damaged part.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ContainerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let verdict = self.take(bytes);
        if let Err(error) = &verdict {
            self.failed = Some(error.clone());
        }
        verdict
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), ContainerError> {
        while !bytes.is_empty() {
            let taken = match &self.head {
                None => self.take_head(bytes)?,
                Some(_) => self.take_piece(bytes)?,
            };
            self.seen = self.seen.saturating_add(wide(taken));
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    /// Buffers up to the next boundary (end of header, end of head) and parses there.
    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, ContainerError> {
        let target = self.header.as_ref().map_or(wide(HEADER_BYTES), ChunkHeader::head_bytes);
        let missing = usize::try_from(target).unwrap_or(usize::MAX).saturating_sub(self.buffer.len());
        let part = bytes.get(..min(missing, bytes.len())).unwrap_or_default();
        self.buffer.extend_from_slice(part);
        if wide(self.buffer.len()) == target {
            if self.header.is_none() {
                self.header = Some(ChunkHeader::parse(&self.buffer)?);
            } else {
                self.head = Some(Head::parse(&self.buffer)?);
                self.buffer = Vec::new();
                self.enter_piece(0);
            }
        }
        Ok(part.len())
    }

    /// Moves to the first present piece at or after index `from`.
    fn enter_piece(&mut self, from: usize) {
        self.crc = 0;
        (self.piece, self.left) = (usize::MAX, 0);
        let Some(head) = &self.head else { return };
        let spans = head.span_count().max(1);
        let count = head.sections().len().saturating_mul(spans);
        for index in from..count {
            if let Some(entry) = head.piece(index.div_euclid(spans), index.rem_euclid(spans)) {
                (self.piece, self.left) = (index, entry.range.end.saturating_sub(entry.range.start));
                return;
            }
        }
    }

    fn take_piece(&mut self, bytes: &[u8]) -> Result<usize, ContainerError> {
        let Some(head) = &self.head else { return Ok(0) };
        if self.left == 0 {
            return Err(ContainerError::Trailing { expected: head.header.object_bytes });
        }
        let taken = min(usize::try_from(self.left).unwrap_or(usize::MAX), bytes.len());
        self.crc = crc32c::crc32c_append(self.crc, bytes.get(..taken).unwrap_or_default());
        self.left = self.left.saturating_sub(wide(taken));
        if self.left == 0 {
            let spans = head.span_count().max(1);
            let (section, span) = (self.piece.div_euclid(spans), self.piece.rem_euclid(spans));
            let expected = head.piece(section, span).map_or(0, |entry| entry.crc32c);
            if expected != self.crc {
                let part = Part::Piece { section, span };
                return Err(ContainerError::Checksum { part, expected, actual: self.crc });
            }
            self.enter_piece(self.piece.saturating_add(1));
        }
        Ok(taken)
    }

    /// The header, as soon as its 256 bytes have been seen and verified.
    pub fn header(&self) -> Option<&ChunkHeader> {
        self.header.as_ref()
    }

    /// The head, as soon as all of it has been seen and verified.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Ends the object and returns its head.
    ///
    /// # Errors
    /// The error of an earlier [`push`](Self::push), or [`ContainerError::Truncated`].
    pub fn finish(self) -> Result<Head, ContainerError> {
        let actual = self.seen;
        match (self.failed, self.head, self.header) {
            (Some(error), _, _) => Err(error),
            (None, Some(head), _) if self.left == 0 => Ok(head),
            (None, Some(head), _) => {
                let spans = head.span_count().max(1);
                let (section, span) = (self.piece.div_euclid(spans), self.piece.rem_euclid(spans));
                let expected = head.piece(section, span).map_or(actual, |entry| entry.range.end);
                Err(ContainerError::Truncated { part: Part::Piece { section, span }, expected, actual })
            }
            (None, None, Some(header)) if actual < wide(header.tokens_offset()) => {
                let expected = wide(header.tokens_offset());
                Err(ContainerError::Truncated { part: Part::Directory, expected, actual })
            }
            (None, None, Some(header)) => {
                let expected = header.head_bytes();
                Err(ContainerError::Truncated { part: Part::Tokens, expected, actual })
            }
            (None, None, None) => {
                let expected = wide(HEADER_BYTES);
                Err(ContainerError::Truncated { part: Part::Header, expected, actual })
            }
        }
    }
}
