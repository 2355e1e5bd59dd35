//! Writing chunk objects.

use kvasir_types::{ChainLink, ModelId, ProfileHash, SPAN_TOKENS, SeqHash};

use crate::{
    directory::{SectionId, check_order},
    error::{ContainerError, Part},
    extensions::{self, Extension},
    fields::wide,
    header::ChunkHeader,
    limits::{BLOCK_HASH_BYTES, PIECE_BYTES_MAX},
    tokens,
};

/// The fields of a chunk's header that do not follow from its tokens and pieces.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkMeta {
    /// The model of this cache.
    pub model_id: ModelId,
    /// The profile that the pieces were coded with.
    pub profile_hash: ProfileHash,
    /// Where the chunk attaches to its chain.
    pub link: ChainLink,
    /// Position of the first token in its context.
    pub first_position: u64,
    /// The token before the chunk.
    pub preceding_token: Option<u32>,
    /// Quality levels, 1 to 8.
    pub level_count: u8,
    /// Leading tokens stored exactly inside level 0, at most 16.
    pub exact_tokens: u8,
    /// Predicted KL (nats per token) beneath the chunk; finite, not negative.
    pub kl_beneath: f32,
}

impl ChunkMeta {
    /// The first chunk of a context: position 0, nothing before it, one level.
    pub fn new(model_id: ModelId, profile_hash: ProfileHash, link: ChainLink) -> Self {
        Self {
            model_id,
            profile_hash,
            link,
            first_position: 0,
            preceding_token: None,
            level_count: 1,
            exact_tokens: 0,
            kl_beneath: 0.0,
        }
    }
}

/// Assembles a chunk object. Sections are added in fetch order; block hashes and `seq_hash` follow from the tokens.
#[derive(Debug)]
pub struct ChunkBuilder {
    meta: ChunkMeta,
    tokens: Vec<u32>,
    sections: Vec<SectionId>,
    pieces: Vec<Option<Vec<u8>>>,
    extensions: Vec<u8>,
    last_kind: Option<u16>,
}

impl ChunkBuilder {
    /// A chunk of these tokens, without sections.
    ///
    /// # Errors
    /// [`ContainerError::Field`] where the metadata or the number of tokens is outside the format's limits.
    pub fn new(meta: ChunkMeta, tokens: Vec<u32>) -> Result<Self, ContainerError> {
        let builder = Self {
            meta,
            tokens,
            sections: Vec::new(),
            pieces: Vec::new(),
            extensions: Vec::new(),
            last_kind: None,
        };
        let mut header = builder.header(&[])?;
        header.object_bytes = header.head_bytes();
        header.check()?;
        Ok(builder)
    }

    /// Spans that every section has pieces for.
    pub fn span_count(&self) -> usize {
        self.tokens.len().div_ceil(SPAN_TOKENS)
    }

    /// Adds the next section in fetch order, one piece a span (`None`: absent).
    ///
    /// # Errors
    /// [`ContainerError::PieceCount`]; [`Length`](ContainerError::Length) for an empty piece or one above 64 MiB.
    /// [`finish`](Self::finish) checks the order.
    pub fn section(
        &mut self,
        id: SectionId,
        pieces: Vec<Option<Vec<u8>>>,
    ) -> Result<&mut Self, ContainerError> {
        let section = self.sections.len();
        if pieces.len() != self.span_count() {
            let (expected, actual) = (self.span_count(), pieces.len());
            return Err(ContainerError::PieceCount { section, expected, actual });
        }
        let limit = u64::from(PIECE_BYTES_MAX);
        let bad =
            |piece: &Option<Vec<u8>>| piece.as_ref().is_some_and(|b| !(1..=limit).contains(&wide(b.len())));
        if let Some(span) = pieces.iter().position(bad) {
            let actual = pieces.get(span).and_then(Option::as_ref).map_or(0, |bytes| wide(bytes.len()));
            return Err(ContainerError::Length {
                part: Part::Piece { section, span },
                expected: limit,
                actual,
            });
        }
        self.sections.push(id);
        self.pieces.extend(pieces);
        Ok(self)
    }

    /// Adds an extension; kinds ascend.
    ///
    /// # Errors
    /// [`ContainerError::ExtensionOrder`]. [`finish`](Self::finish) checks their length.
    pub fn extension(&mut self, extension: &Extension) -> Result<&mut Self, ContainerError> {
        if self.last_kind.is_some_and(|before| before >= extension.kind) {
            return Err(ContainerError::ExtensionOrder { kind: extension.kind });
        }
        self.last_kind = Some(extension.kind);
        extensions::write(extension, &mut self.extensions);
        Ok(self)
    }

    /// The object's bytes.
    ///
    /// # Errors
    /// [`ContainerError::SectionOrder`], or a [`Field`](ContainerError::Field) outside the format's limits.
    pub fn finish(self) -> Result<Vec<u8>, ContainerError> {
        check_order(&self.sections, self.meta.level_count)?;
        let packed = tokens::compress(&self.tokens)?;
        let mut header = self.header(&packed)?;
        let (hashes, seq_hash) = block_hashes(self.meta.link, &self.tokens);
        header.seq_hash = seq_hash;
        let directory = [hashes, self.directory(), self.extensions.clone()].concat();
        header.directory_crc = crc32c::crc32c(&directory);
        header.tokens_crc = crc32c::crc32c(&packed);
        let pieces = self.pieces.iter().flatten();
        let piece_bytes = pieces.clone().fold(0u64, |sum, piece| sum.saturating_add(wide(piece.len())));
        header.object_bytes = header.head_bytes().saturating_add(piece_bytes);
        header.check()?;
        let mut object = Vec::with_capacity(usize::try_from(header.object_bytes).unwrap_or(0));
        object.extend_from_slice(&header.to_bytes());
        object.extend_from_slice(&directory);
        object.extend_from_slice(&packed);
        pieces.for_each(|piece| object.extend_from_slice(piece));
        Ok(object)
    }

    /// The header without hashes, checksums and the object's length.
    fn header(&self, packed: &[u8]) -> Result<ChunkHeader, ContainerError> {
        let field = |offset, field, rule, actual| ContainerError::Field { offset, field, rule, actual };
        let (count, sections) = (self.tokens.len(), self.sections.len());
        let meta = &self.meta;
        Ok(ChunkHeader {
            flags: u32::from(meta.preceding_token.is_some()),
            model_id: meta.model_id,
            profile_hash: meta.profile_hash,
            parent_hash: meta.link.parent,
            chain_key: meta.link.key,
            seq_hash: meta.link.parent.into(),
            first_position: meta.first_position,
            token_count: u32::try_from(count)
                .map_err(|_| field(12, "token_count", "must be 1 to 16384", wide(count)))?,
            preceding_token: meta.preceding_token,
            section_count: u16::try_from(sections)
                .map_err(|_| field(6, "section_count", "must be at most 16384", wide(sections)))?,
            span_count: u16::try_from(self.span_count())
                .map_err(|_| field(12, "token_count", "must be 1 to 16384", wide(count)))?,
            level_count: meta.level_count,
            exact_tokens: meta.exact_tokens,
            kl_beneath: meta.kl_beneath,
            tokens_bytes: u32::try_from(packed.len()).map_err(|_| ContainerError::Compress)?,
            extension_bytes: u32::try_from(self.extensions.len()).unwrap_or(u32::MAX),
            directory_crc: 0,
            tokens_crc: 0,
            object_bytes: 0,
        })
    }

    /// Section entries, then piece entries.
    fn directory(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for id in &self.sections {
            out.extend_from_slice(&id.scope.to_le_bytes());
            out.extend_from_slice(&[id.band, id.level.0, id.flags, 0]);
        }
        for piece in &self.pieces {
            let bytes = piece.as_deref().unwrap_or_default();
            // at most 64 MiB: `section` checked it
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
        }
        out
    }
}

/// The truncated hash of every block, and the hash of the last one.
fn block_hashes(link: ChainLink, tokens: &[u32]) -> (Vec<u8>, SeqHash) {
    let mut last = SeqHash::from(link.parent);
    let mut out = Vec::new();
    for hash in link.blocks(tokens) {
        out.extend(hash.as_bytes().iter().take(BLOCK_HASH_BYTES));
        last = hash;
    }
    (out, last)
}
