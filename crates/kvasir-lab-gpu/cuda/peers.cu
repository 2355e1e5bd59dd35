// What others' decoders look like, for the same run of a benchmark; no part of the codec. Both give bf16 rows
// [token][channel], as ours do.
#include "prelude.cuh"

#include "peers.cuh"

KV_INLINE uint16_t peer_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// In the shape of DietGPU: 4,096 symbols a warp, 32 interleaved states, a table of 2,048 slots {symbol:8 | frequency:12 |
// offset:12} in shared memory, built once an array.
KV_KERNEL(kv_peer_slots, PeerSlotsParams, kDecodeThreads) {
  KV_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  for (uint32_t i = threadIdx.x; i < kPeerSlots; i += blockDim.x) table[i] = at<const uint32_t>(p.table)[i];
  __syncthreads();
  for (uint32_t item = next_item(p.counter); item < p.block_count; item = next_item(p.counter)) {
    const PeerBlock block = at<const PeerBlock>(p.blocks)[item];
    const uint16_t* words = at<const uint16_t>(p.bytes) + block.words / 2u;
    uint32_t x = at<const uint32_t>(p.bytes)[block.states / 4u + lane_id()], cursor = 0;
    uint16_t* out = at<uint16_t>(p.output) + block.output;
    for (uint32_t i = lane_id(); i < kPeerBlockSymbols; i += kLanes) {
      const uint32_t entry = table[x & (kPeerSlots - 1u)];
      x = (entry >> 8 & 0xfffu) * (x / kPeerSlots) + (entry >> 20);
      const bool needs = x < kStateMin;
      const uint32_t mask = __ballot_sync(kAllLanes, needs);
      const uint32_t index = cursor + __popc(mask & ((1u << lane_id()) - 1u));
      if (needs) x = x << 16 | (index < block.word_count ? uint32_t(words[index]) : 0u);
      cursor += __popc(mask);
      out[i] = peer_bf16(mul(float(int32_t(entry & 0xffu) - 7), p.scale));
    }
  }
}

// In the shape of CacheGen as LMCache has it: a thread a channel, an arithmetic coder with a 16-bit distribution of the
// channel's own, binary search, renormalisation bit by bit.
KV_KERNEL(kv_peer_channels, PeerChannelsParams, kTileThreads) {
  const uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= p.channels) return;
  const uint16_t* distribution = at<const uint16_t>(p.distributions) + channel * (kAlphabet + 1u);
  const uint8_t* bytes = at<const uint8_t>(p.bytes) + at<const uint32_t>(p.starts)[channel];
  const uint32_t length = at<const uint32_t>(p.starts)[channel + 1u] - at<const uint32_t>(p.starts)[channel];
  uint32_t low = 0, high = 0xffffffffu, value = 0, bit = 0;
  const auto next_bit = [&]() {
    const uint32_t byte = bit >> 3, taken = byte < length ? bytes[byte] >> (7u - (bit & 7u)) & 1u : 0u;
    ++bit;
    return taken;
  };
  for (uint32_t i = 0; i < 32; ++i) value = value << 1 | next_bit();
  for (uint32_t token = 0; token < p.tokens; ++token) {
    const uint64_t span = uint64_t(high) - low + 1u;
    const uint32_t count = uint32_t(((uint64_t(value) - low + 1u) * 0x10000u - 1u) / span);
    uint32_t left = 0, right = kAlphabet;
    while (left + 1u < right) {
      const uint32_t middle = (left + right) / 2u;
      if (distribution[middle] <= count) left = middle;
      else right = middle;
    }
    const uint32_t above = left + 1u == kAlphabet ? 0x10000u : distribution[left + 1u];
    high = low + uint32_t(span * above >> 16) - 1u;
    low = low + uint32_t(span * distribution[left] >> 16);
    for (;;) {
      if (high < 0x80000000u || low >= 0x80000000u) {
        low <<= 1;
        high = high << 1 | 1u;
        value = value << 1 | next_bit();
      } else if (low >= 0x40000000u && high < 0xc0000000u) {
        low = low << 1 & 0x7fffffffu;
        high = high << 1 | 0x80000001u;
        value = (value - 0x40000000u) << 1 | next_bit();
      } else {
        break;
      }
    }
    at<uint16_t>(p.output)[uint64_t(token) * p.channels + channel] = peer_bf16(mul(float(int32_t(left) - 7), p.scale));
  }
}
