// Constants and records of the peers' kernels, as src/kernels.rs declares them; a test compares.
#pragma once

constexpr uint32_t kPeerSlots = 2048u;  // of a peer's table
constexpr uint32_t kPeerBlockSymbols = 4096u;  // of a peer's block

struct PeerBlock {
  uint32_t states;
  uint32_t words;
  uint32_t word_count;
  uint32_t output;
};

struct PeerSlotsParams {
  uint64_t bytes;
  uint64_t blocks;
  uint64_t table;
  uint64_t counter;
  uint64_t output;
  uint32_t block_count;
  float scale;
};

struct PeerChannelsParams {
  uint64_t bytes;
  uint64_t starts;
  uint64_t distributions;
  uint64_t output;
  uint32_t tokens;
  uint32_t channels;
  float scale;
  uint32_t reserved;
};

// X(entry point, parameters).
#define KV_EXTRA_KERNELS(X) X(kv_peer_slots, PeerSlotsParams) X(kv_peer_channels, PeerChannelsParams)
