//! The 256-byte header.
//!
//! ```text
//!   0  4 magic           16 32 model_id       144  8 first_position    164  4 tokens_bytes
//!   4  2 version         48 32 profile_hash   152  4 preceding_token   168  4 directory_crc
//!   6  2 section_count   80 32 parent_hash    156  4 kl_beneath        172  4 tokens_crc
//!   8  4 flags          112 32 seq_hash       160  2 span_count        176  8 object_bytes
//!  12  4 token_count                          162  1 level_count       184  4 extension_bytes
//!                                             163  1 exact_tokens      188  4 reserved
//! 192 32 chain_key    224 28 reserved         252  4 header_crc
//! ```

use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_MAX, ChainKey, ChainLink, LEVELS_MAX, ModelId, ProfileHash, SPAN_TOKENS,
    SeqHash,
};

use crate::{
    error::{ContainerError, Part},
    fields::{array, put, u16_at, u32_at, u64_at, wide},
    limits::{
        BLOCK_HASH_BYTES, EXACT_TOKENS_MAX, EXTENSIONS_BYTES_MAX, FORMAT_VERSION, HEADER_BYTES, MAGIC,
        OBJECT_BYTES_MAX, PIECE_ENTRY_BYTES, SECTION_ENTRY_BYTES, SECTIONS_MAX, TOKENS_SLACK_BYTES,
    },
};

/// Flag bit 0: `preceding_token` holds a token.
const FLAG_PRECEDING: u32 = 1;
/// Flag bit 1: an opaque object, named by a key, without tokens.
pub(crate) const FLAG_OPAQUE: u32 = 2;
/// Bits 2 to 15 are reserved: a reader rejects objects that set them. Bits 16 to 31 are unused: a reader
/// ignores them.
const FLAGS_RESERVED: u32 = 0xfffc;
/// Offset of the header's checksum, which covers everything before it.
const CRC_AT: usize = 252;

/// A parsed and verified header.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkHeader {
    /// Flags as stored. Bit 0 repeats `preceding_token.is_some()`; bit 1: see [`is_opaque`](Self::is_opaque).
    pub flags: u32,
    /// The model of this cache.
    pub model_id: ModelId,
    /// The profile that decodes it.
    pub profile_hash: ProfileHash,
    /// Identity of everything before the chunk: the `seq_hash` of the block before, or the root's first parent.
    pub parent_hash: [u8; 32],
    /// The key of the chunk's block hashes.
    pub chain_key: ChainKey,
    /// Identity of the chunk: that of its last block.
    pub seq_hash: SeqHash,
    /// Position of the first token in its context.
    pub first_position: u64,
    /// Tokens, 1 to [`CHUNK_TOKENS_MAX`]; 0 in an opaque object.
    pub token_count: u32,
    /// The token before the chunk, for predictors that use the previous token.
    pub preceding_token: Option<u32>,
    /// Sections in the directory.
    pub section_count: u16,
    /// Spans: `ceil(token_count / 256)`.
    pub span_count: u16,
    /// Quality levels, 1 to [`LEVELS_MAX`].
    pub level_count: u8,
    /// Leading tokens stored exactly inside level 0.
    pub exact_tokens: u8,
    /// Sum of the predicted KL (nats per token) of the levels at which the ancestors were loaded when this
    /// was computed.
    pub kl_beneath: f32,
    /// Bytes of the compressed tokens.
    pub tokens_bytes: u32,
    /// Bytes of the extensions.
    pub extension_bytes: u32,
    /// CRC32C of block hashes, directory and extensions.
    pub directory_crc: u32,
    /// CRC32C of the compressed tokens.
    pub tokens_crc: u32,
    /// Bytes of the whole object.
    pub object_bytes: u64,
}

impl ChunkHeader {
    /// Reads and verifies a header from the start of `bytes`; it does not read what follows.
    ///
    /// # Errors
    /// [`ContainerError::Truncated`], [`Magic`](ContainerError::Magic), [`Version`](ContainerError::Version),
    /// [`Checksum`](ContainerError::Checksum), or [`Field`](ContainerError::Field) for a value out of its limits.
    pub fn parse(bytes: &[u8]) -> Result<Self, ContainerError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let (expected, actual) = (wide(HEADER_BYTES), wide(bytes.len()));
            return Err(ContainerError::Truncated { part: Part::Header, expected, actual });
        };
        let found = array(bytes, 0);
        if found != MAGIC {
            return Err(ContainerError::Magic { found });
        }
        let [major, minor] = array(bytes, 4);
        if major != FORMAT_VERSION.0 || minor < FORMAT_VERSION.1 {
            return Err(ContainerError::Version { found: (major, minor) });
        }
        let (expected, actual) = (u32_at(bytes, CRC_AT), header_crc(bytes));
        if expected != actual {
            return Err(ContainerError::Checksum { part: Part::Header, expected, actual });
        }
        let flags = u32_at(bytes, 8);
        let header = Self {
            flags,
            model_id: array(bytes, 16).into(),
            profile_hash: array(bytes, 48).into(),
            parent_hash: array(bytes, 80),
            chain_key: array(bytes, 192).into(),
            seq_hash: array(bytes, 112).into(),
            first_position: u64_at(bytes, 144),
            token_count: u32_at(bytes, 12),
            preceding_token: (flags & FLAG_PRECEDING != 0).then(|| u32_at(bytes, 152)),
            section_count: u16_at(bytes, 6),
            span_count: u16_at(bytes, 160),
            level_count: array::<1>(bytes, 162)[0],
            exact_tokens: array::<1>(bytes, 163)[0],
            kl_beneath: f32::from_bits(u32_at(bytes, 156)),
            tokens_bytes: u32_at(bytes, 164),
            directory_crc: u32_at(bytes, 168),
            tokens_crc: u32_at(bytes, 172),
            object_bytes: u64_at(bytes, 176),
            extension_bytes: u32_at(bytes, 184),
        };
        let unused = u32_at(bytes, 152);
        check(
            header.preceding_token.is_some() || unused == 0,
            152,
            "preceding_token",
            "must be 0 without flag 0",
            unused,
        )?;
        let reserved = u32_at(bytes, 188);
        check(reserved == 0, 188, "reserved", "must be 0", reserved)?;
        let reserved = bytes.get(224..CRC_AT).unwrap_or_default();
        let nonzero = reserved.iter().copied().find(|&byte| byte != 0).unwrap_or(0);
        check(nonzero == 0, 224, "reserved", "must be 0", nonzero)?;
        header.check()?;
        Ok(header)
    }

    /// Checks every rule about single fields, for readers and writers.
    pub(crate) fn check(&self) -> Result<(), ContainerError> {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let tokens = self.token_count;
        let spans = tokens.div_ceil(u32::try_from(SPAN_TOKENS).unwrap_or(u32::MAX));
        let tokens_bytes_max = size(tokens).saturating_mul(4).saturating_add(TOKENS_SLACK_BYTES);
        let in_range = |n: usize, max: usize| (1..=max).contains(&n);
        check(self.flags & FLAGS_RESERVED == 0, 8, "flags", "bits 2 to 15 are reserved", self.flags)?;
        if self.is_opaque() {
            return self.check_opaque();
        }
        check(in_range(size(tokens), CHUNK_TOKENS_MAX), 12, "token_count", "must be 1 to 16384", tokens)?;
        check(
            usize::from(self.section_count) <= SECTIONS_MAX,
            6,
            "section_count",
            "must be at most 16384",
            self.section_count,
        )?;
        check(
            self.first_position.checked_add(u64::from(tokens)).is_some(),
            144,
            "first_position",
            "positions must fit 64 bits",
            self.first_position,
        )?;
        let kl_ok = self.kl_beneath.is_finite() && self.kl_beneath.is_sign_positive();
        check(kl_ok, 156, "kl_beneath", "must be finite and not negative", self.kl_beneath.to_bits())?;
        check(
            u32::from(self.span_count) == spans,
            160,
            "span_count",
            "must be ceil(token_count / 256)",
            self.span_count,
        )?;
        check(
            in_range(usize::from(self.level_count), LEVELS_MAX),
            162,
            "level_count",
            "must be 1 to 8",
            self.level_count,
        )?;
        let exact_ok = self.exact_tokens <= EXACT_TOKENS_MAX && u32::from(self.exact_tokens) <= tokens;
        check(
            exact_ok,
            163,
            "exact_tokens",
            "must be at most 16 and at most token_count",
            self.exact_tokens,
        )?;
        check(
            size(self.tokens_bytes) <= tokens_bytes_max,
            164,
            "tokens_bytes",
            "must be at most 4 token_count + 1024",
            self.tokens_bytes,
        )?;
        self.check_lengths()
    }

    /// As [`check`](Self::check), for an opaque object: fields about a model or tokens must be neutral.
    fn check_opaque(&self) -> Result<(), ContainerError> {
        const RULE: &str = "an opaque object belongs to no model and has no tokens";
        let zero = |holds: bool, offset, field, actual: u64| check(holds, offset, field, RULE, actual);
        zero(self.model_id == ModelId::OPAQUE, 16, "model_id", 0)?;
        zero(self.profile_hash == ProfileHash::from([0; 32]), 48, "profile_hash", 0)?;
        zero(self.parent_hash == [0; 32], 80, "parent_hash", 0)?;
        zero(self.token_count == 0, 12, "token_count", self.token_count.into())?;
        zero(self.preceding_token.is_none(), 8, "flags", self.flags.into())?;
        zero(self.first_position == 0, 144, "first_position", self.first_position)?;
        zero(self.kl_beneath.to_bits() == 0, 156, "kl_beneath", self.kl_beneath.to_bits().into())?;
        zero(self.span_count == 1, 160, "span_count", self.span_count.into())?;
        zero(self.level_count == 1, 162, "level_count", self.level_count.into())?;
        zero(self.exact_tokens == 0, 163, "exact_tokens", self.exact_tokens.into())?;
        zero(self.tokens_bytes == 0, 164, "tokens_bytes", self.tokens_bytes.into())?;
        let sections = usize::from(self.section_count);
        check(sections <= SECTIONS_MAX, 6, "section_count", "must be at most 16384", self.section_count)?;
        self.check_lengths()
    }

    fn check_lengths(&self) -> Result<(), ContainerError> {
        let is_short = usize::try_from(self.extension_bytes).is_ok_and(|bytes| bytes <= EXTENSIONS_BYTES_MAX);
        check(is_short, 184, "extension_bytes", "must be at most 65536", self.extension_bytes)?;
        let object_ok = (self.head_bytes()..=OBJECT_BYTES_MAX).contains(&self.object_bytes);
        check(object_ok, 176, "object_bytes", "must hold the head and be at most 5 GiB", self.object_bytes)
    }

    /// Whether it is of an opaque object: bytes under a key, in pieces of 1 MiB, without tokens.
    pub fn is_opaque(&self) -> bool {
        self.flags & FLAG_OPAQUE != 0
    }

    /// The number that [`reissue_header`] wrote.
    pub fn incarnation(&self) -> u16 {
        let [_, _, low, high] = self.flags.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Where the chunk attaches to its chain.
    pub fn link(&self) -> ChainLink {
        ChainLink { key: self.chain_key, parent: self.parent_hash }
    }

    /// Blocks of 16 tokens, the last one possibly partial. An opaque object counts as one.
    pub fn block_count(&self) -> usize {
        usize::try_from(self.token_count).unwrap_or(usize::MAX).div_ceil(BLOCK_TOKENS).max(1)
    }

    /// Bytes of the block hashes.
    pub(crate) fn block_hash_bytes(&self) -> usize {
        self.block_count().saturating_mul(BLOCK_HASH_BYTES)
    }

    /// Bytes of the directory, without the block hashes.
    pub(crate) fn directory_bytes(&self) -> usize {
        let entry = usize::from(self.span_count)
            .saturating_mul(PIECE_ENTRY_BYTES)
            .saturating_add(SECTION_ENTRY_BYTES);
        usize::from(self.section_count).saturating_mul(entry)
    }

    /// Offset of the extensions, after the header, the block hashes and the directory.
    pub(crate) fn extensions_offset(&self) -> usize {
        HEADER_BYTES.saturating_add(self.block_hash_bytes()).saturating_add(self.directory_bytes())
    }

    /// Offset of the compressed tokens.
    pub(crate) fn tokens_offset(&self) -> usize {
        self.extensions_offset().saturating_add(usize::try_from(self.extension_bytes).unwrap_or(usize::MAX))
    }

    /// Bytes of everything before the first piece. [`Head::parse`](crate::Head::parse) needs these.
    pub fn head_bytes(&self) -> u64 {
        wide(self.tokens_offset()).saturating_add(u64::from(self.tokens_bytes))
    }

    /// Bytes of the whole object.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// The 256 bytes.
    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let flags = match self.preceding_token {
            Some(_) => self.flags | FLAG_PRECEDING,
            None => self.flags & !FLAG_PRECEDING,
        };
        put(&mut out, 0, &MAGIC);
        put(&mut out, 4, &[FORMAT_VERSION.0, FORMAT_VERSION.1]);
        put(&mut out, 6, &self.section_count.to_le_bytes());
        put(&mut out, 8, &flags.to_le_bytes());
        put(&mut out, 12, &self.token_count.to_le_bytes());
        put(&mut out, 16, self.model_id.as_bytes());
        put(&mut out, 48, self.profile_hash.as_bytes());
        put(&mut out, 80, &self.parent_hash);
        put(&mut out, 112, self.seq_hash.as_bytes());
        put(&mut out, 144, &self.first_position.to_le_bytes());
        put(&mut out, 152, &self.preceding_token.unwrap_or(0).to_le_bytes());
        put(&mut out, 156, &self.kl_beneath.to_le_bytes());
        put(&mut out, 160, &self.span_count.to_le_bytes());
        put(&mut out, 162, &[self.level_count, self.exact_tokens]);
        put(&mut out, 164, &self.tokens_bytes.to_le_bytes());
        put(&mut out, 168, &self.directory_crc.to_le_bytes());
        put(&mut out, 172, &self.tokens_crc.to_le_bytes());
        put(&mut out, 176, &self.object_bytes.to_le_bytes());
        put(&mut out, 184, &self.extension_bytes.to_le_bytes());
        put(&mut out, 192, self.chain_key.as_bytes());
        let crc = header_crc(&out);
        put(&mut out, CRC_AT, &crc.to_le_bytes());
        out
    }
}

/// CRC32C of the bytes before the field that stores it.
fn header_crc(bytes: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c(bytes.get(..CRC_AT).unwrap_or_default())
}

fn check(
    holds: bool,
    offset: u64,
    field: &'static str,
    rule: &'static str,
    actual: impl Into<u64>,
) -> Result<(), ContainerError> {
    if holds { Ok(()) } else { Err(ContainerError::Field { offset, field, rule, actual: actual.into() }) }
}

/// Writes an `incarnation` number into the flags that readers ignore (bits 16 to 31) and renews the header's checksum.
///
/// The object decodes to the same values under another digest: a store uses it to write a chunk again whose former
/// name is being deleted.
///
/// # Errors
/// As [`ChunkHeader::parse`], before anything is changed.
pub fn reissue_header(header: &mut [u8; HEADER_BYTES], incarnation: u16) -> Result<(), ContainerError> {
    let parsed = ChunkHeader::parse(header)?;
    let flags = (parsed.flags & 0xffff) | (u32::from(incarnation) << 16);
    put(header, 8, &flags.to_le_bytes());
    let crc = header_crc(header);
    put(header, CRC_AT, &crc.to_le_bytes());
    Ok(())
}
