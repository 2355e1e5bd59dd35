//! Room that is set aside on the device, each with its reason.

use kvasir_codec::rans::STREAM_COEFFICIENTS_MAX;
use kvasir_types::SPAN_TOKENS;

/// Words reserved for each stream of an encoder: 6 bits per symbol, while trained tables need 3 at most. A
/// piece with a longer stream is coded on the host.
pub(crate) const STREAM_WORDS: usize = STREAM_COEFFICIENTS_MAX * SPAN_TOKENS * 6 / 16;
/// Bytes of output reserved for each quantised value of all levels; a longer piece is coded on the host.
pub(crate) const OUTPUT_BYTES_PER_VALUE: usize = 1;
/// Smallest output, so that short chunks with raw pieces fit.
pub(crate) const OUTPUT_BYTES_MIN: usize = 64 * 1024;
/// Most bytes that a save copies out of a rank's pages at a time; a plane of a layer has 3 MB a chunk in an 8 B model. They
/// take as much pinned memory, and pages are not reassigned before they are copied.
#[cfg(feature = "client")]
pub(crate) const READ_BYTES_MAX: usize = 8 << 20;
/// Profiles that the pages of a rank keep on the device: a model's own and its successor's, and two that older chunks
/// were encoded with.
#[cfg(feature = "client")]
pub(crate) const RESIDENT_PROFILES_MAX: usize = 4;
/// Decodes into the pages of a rank that run at a time; others wait. Each takes memory of the device for its bytes and its
/// coefficients, while kernels run one after the other anyway: one decodes, and what the next ones need travels.
#[cfg(feature = "client")]
pub(crate) const DECODES_MAX: usize = 4;
