//! The unit of decoding.

/// One scope of one span, to be decoded at a level.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeTask {
    pub(super) scope: usize,
    pub(super) span: usize,
    pub(super) level: usize,
}
