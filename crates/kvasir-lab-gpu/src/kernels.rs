//! The peers' kernels (`cuda/peers.cu`): entry points and records.

use kvasir_cuda::ExternalKernel;
use kvasir_kernels::{DECODE_THREADS, TILE_THREADS, device_records};

/// Slots of the table of [`PEER_SLOTS_KERNEL`].
pub const PEER_SLOTS: u32 = 2_048;
/// Symbols that one warp of it decodes.
pub const PEER_BLOCK_SYMBOLS: u32 = 4_096;

const FILES: &[(&str, &str)] =
    &[("peers.cu", include_str!("../cuda/peers.cu")), ("peers.cuh", include_str!("../cuda/peers.cuh"))];

/// A decoder in the shape of DietGPU's. Takes [`PeerSlotsParams`], and 4 bytes of shared memory per slot.
pub const PEER_SLOTS_KERNEL: ExternalKernel =
    ExternalKernel { name: "kv_peer_slots", source: "peers.cu", files: FILES, threads: DECODE_THREADS };
/// A decoder in the shape of CacheGen's. Takes [`PeerChannelsParams`].
pub const PEER_CHANNELS_KERNEL: ExternalKernel =
    ExternalKernel { name: "kv_peer_channels", source: "peers.cu", files: FILES, threads: TILE_THREADS };

device_records! { PEER_RECORDS:
    /// A block of symbols of `kv_peer_slots`.
    pub struct PeerBlock {
        /// Byte of its 32 states.
        pub states: u32,
        /// Byte of its words.
        pub words: u32,
        /// Words.
        pub word_count: u32,
        /// Its first value in the output.
        pub output: u32,
    }

    /// Parameters of `kv_peer_slots`.
    pub struct PeerSlotsParams {
        /// Compressed bytes.
        pub bytes: u64,
        /// `PeerBlock[block_count]`.
        pub blocks: u64,
        /// Slots, `u32[2048]`.
        pub table: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Out: bf16.
        pub output: u64,
        /// Blocks.
        pub block_count: u32,
        /// Value of a step.
        pub scale: f32,
    }

    /// Parameters of `kv_peer_channels`.
    pub struct PeerChannelsParams {
        /// Compressed bytes.
        pub bytes: u64,
        /// First byte of every channel, and the end.
        pub starts: u64,
        /// Distributions, `u16[channel][17]`.
        pub distributions: u64,
        /// Out: bf16, `[token][channel]`.
        pub output: u64,
        /// Tokens.
        pub tokens: u32,
        /// Channels.
        pub channels: u32,
        /// Value of a step.
        pub scale: f32,
        /// Zero.
        pub reserved: u32,
    }
}

/// The constants and records that `cuda/peers.cuh` must declare.
pub fn c_declarations() -> String {
    format!(
        "constexpr uint32_t kPeerSlots = {PEER_SLOTS}u;  // of a peer's table\n\
         constexpr uint32_t kPeerBlockSymbols = {PEER_BLOCK_SYMBOLS}u;  // of a peer's block\n{}",
        kvasir_kernels::c_structs(PEER_RECORDS)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_is_current() {
        assert!(include_str!("../cuda/peers.cuh").contains(&super::c_declarations()));
    }

    #[test]
    fn the_translation_unit_holds_every_header_once() {
        let text = kvasir_kernels::translation_unit_with("peers.cu", super::FILES);
        assert!(!text.contains("#include \"p") && text.contains("kv_peer_channels"));
        assert_eq!(text.matches("struct PeerBlock {").count(), 1);
        assert_eq!(text.matches("struct DecodeParams {").count(), 1);
    }
}
