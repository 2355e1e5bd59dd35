//! The longest usable prefix of a token sequence.

use kvasir_types::{Level, LevelError, Loss, Medium, ModelId, Name, ObjectDigest, ProfileHash, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of tokens of a lookup by tokens: the longest contexts in use have 1 M.
pub const LOOKUP_TOKENS_MAX: usize = 1 << 20;
/// Most hashes of a lookup by block hashes.
pub const LOOKUP_BLOCKS_MAX: usize = LOOKUP_TOKENS_MAX / kvasir_types::BLOCK_TOKENS;

/// Queries the longest stored prefix. Give exactly one of `tokens`, `block_hashes` and `chunk_ids`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupRequest {
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// The tokens; the server hashes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// Hashes of consecutive blocks, starting at the root (the last one may be a shorter tail).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hashes: Option<Vec<SeqHash>>,
    /// `seq_hash` of consecutive chunks, starting at the root: for a context whose chunks the caller knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_ids: Option<Vec<SeqHash>>,
    /// Bypass cached misses and query the store, including tombstones of matched chunks.
    #[serde(default)]
    pub fresh: bool,
    /// Request presigned URLs if the store supports them; otherwise every chunk is read through the service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

/// Query of a lookup whose body is binary: tokens ([`MEDIA_TOKENS`](crate::MEDIA_TOKENS)) or block hashes
/// ([`MEDIA_BLOCKS`](crate::MEDIA_BLOCKS)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LookupQuery {
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// As [`LookupRequest::fresh`].
    #[serde(default)]
    pub fresh: bool,
    /// As [`LookupRequest::direct`].
    #[serde(default)]
    pub direct: bool,
}

/// The longest usable prefix, chunk by chunk from the first token on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LookupResponse {
    /// Total number of matched tokens.
    pub matched_tokens: u64,
    /// The objects that contain them, in order.
    pub chunks: Vec<ChunkMatch>,
}

impl LookupResponse {
    /// Bytes of a chunk with a few levels as JSON.
    const CHUNK_JSON_BYTES: usize = 512;

    /// The response as JSON, byte for byte as `serde_json::to_vec` writes it. Two thirds of it are hashes and names of
    /// fields: they are copied, where `serde_json` searches each of their bytes for what JSON escapes.
    ///
    /// # Errors
    /// Those of `serde_json`; a response has no value that it refuses.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let Self { matched_tokens, chunks } = self;
        let mut text = Vec::with_capacity((chunks.len() + 1) * Self::CHUNK_JSON_BYTES);
        write_field(&mut text, br#"{"matched_tokens":"#, matched_tokens)?;
        text.extend_from_slice(br#","chunks":["#);
        for (index, chunk) in chunks.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            chunk.write_json(&mut text)?;
        }
        text.extend_from_slice(b"]}");
        Ok(text)
    }
}

/// Writes a field: what precedes its value, and the value.
fn write_field(text: &mut Vec<u8>, before: &[u8], value: &impl Serialize) -> serde_json::Result<()> {
    text.extend_from_slice(before);
    serde_json::to_writer(text, value)
}

/// One object of a match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChunkMatch {
    /// The chunk's identity.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
    /// The profile it was encoded with.
    pub profile_hash: ProfileHash,
    /// Position of its first token in the context.
    pub first_token: u64,
    /// Number of tokens in it.
    pub tokens: u32,
    /// Number of its leading tokens that match: all of them, except in the last chunk of a match.
    pub matched_tokens: u32,
    /// Size of the whole object.
    pub bytes: u64,
    /// Bytes of header, block hashes, directory and tokens: these must be read first.
    pub head_bytes: u64,
    /// `level_bytes[l]`: length of the object's prefix that decodes to level `l`.
    pub level_bytes: Vec<u64>,
    /// Sum of the predicted logit KL (nats per token) of the prefixes that this chunk was computed over.
    pub kl_beneath: f32,
    /// Errors of its levels, if its encoder measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<ChunkErrors>,
    /// Location of its bytes.
    pub medium: Medium,
    /// How to read it.
    pub via: Via,
}

/// Errors of a chunk's levels, as measured by its encoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkErrors {
    /// Error of each level, coarsest first: that of its worst plane.
    pub levels: Vec<LevelError>,
    /// Largest error of the KV that the chunk was computed over.
    pub beneath: LevelError,
    /// Length of the chain of computations over lossy KV, including the chunk itself.
    pub hops: u8,
}

impl ChunkMatch {
    fn write_json(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        // By name: a field that is added does not compile until it is written.
        let Self {
            seq_hash,
            object_digest,
            profile_hash,
            first_token,
            tokens,
            matched_tokens,
            bytes,
            head_bytes,
            level_bytes,
            kl_beneath,
            errors,
            medium,
            via,
        } = self;
        text.extend_from_slice(br#"{"seq_hash":""#);
        text.extend_from_slice(&seq_hash.to_hex());
        text.extend_from_slice(br#"","object_digest":""#);
        text.extend_from_slice(&object_digest.to_hex());
        text.extend_from_slice(br#"","profile_hash":""#);
        text.extend_from_slice(&profile_hash.to_hex());
        write_field(text, br#"","first_token":"#, first_token)?;
        write_field(text, br#","tokens":"#, tokens)?;
        write_field(text, br#","matched_tokens":"#, matched_tokens)?;
        write_field(text, br#","bytes":"#, bytes)?;
        write_field(text, br#","head_bytes":"#, head_bytes)?;
        write_field(text, br#","level_bytes":"#, level_bytes)?;
        write_field(text, br#","kl_beneath":"#, kl_beneath)?;
        if let Some(errors) = errors {
            write_field(text, br#","errors":"#, errors)?;
        }
        write_field(text, br#","medium":"#, medium)?;
        write_field(text, br#","via":"#, via)?;
        text.push(b'}');
        Ok(())
    }

    /// The loss of KV decoded at a level whose predicted KL is `kl`. Without measurements, the error is
    /// unknown and no hop is counted.
    pub fn loss_at(&self, level: Level, kl: f64) -> Loss {
        let beneath = f64::from(self.kl_beneath);
        let Some(errors) = &self.errors else {
            return Loss { kl: beneath + kl, error: LevelError::UNKNOWN, hops: 0 };
        };
        let own = errors.levels.get(level.index()).copied().unwrap_or(LevelError::UNKNOWN);
        Loss { kl: beneath, error: errors.beneath, hops: errors.hops }.through(kl, own)
    }
}

/// How a chunk is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Through the service.
    Proxy,
    /// From the object store, with this presigned URL.
    Direct {
        /// Presigned `GET` URL that supports `Range`.
        url: String,
        /// Validity, in seconds from the response; 0 if unknown. Look up again for a new URL.
        #[serde(default)]
        expires_in_s: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(number: u8) -> ChunkMatch {
        ChunkMatch {
            seq_hash: [number; 32].into(),
            object_digest: [number ^ 0xff; 32].into(),
            profile_hash: [number.wrapping_mul(37); 32].into(),
            first_token: u64::MAX - u64::from(number),
            tokens: u32::from(number) << 20,
            matched_tokens: u32::from(number),
            bytes: u64::from(number) << 40,
            head_bytes: 0,
            level_bytes: (0..u64::from(number) % 9).map(|level| level << (7 * level)).collect(),
            kl_beneath: [0.0, 1.5e-7, 0.1, f32::MAX, f32::NAN, f32::INFINITY][usize::from(number) % 6],
            errors: (!number.is_multiple_of(3)).then(|| ChunkErrors {
                levels: (0..number % 5).map(|level| LevelError::from_byte(level * 63 + 3)).collect(),
                beneath: if number.is_multiple_of(2) { LevelError::UNKNOWN } else { LevelError::NONE },
                hops: number,
            }),
            medium: [Medium::Cpu, Medium::Disk, Medium::Object][usize::from(number) % 3],
            via: match number.is_multiple_of(2) {
                true => Via::Proxy,
                false => {
                    Via::Direct { url: format!("http://\"é\\\n{number}"), expires_in_s: u64::from(number) }
                }
            },
        }
    }

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes() {
        for count in [0, 1, 2, 40] {
            let chunks: Vec<_> = (0..count).map(chunk).collect();
            let response = LookupResponse { matched_tokens: u64::from(count) << 50, chunks };
            let by_hand = response.to_json().expect("JSON");
            let by_serde = serde_json::to_vec(&response).expect("JSON");
            assert_eq!(str::from_utf8(&by_hand), str::from_utf8(&by_serde));
        }
    }
}
