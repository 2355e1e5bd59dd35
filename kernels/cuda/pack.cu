// Streams to pieces in the output: places and heads, then states and words. Raw where FORMAT.md section 5.6 says so.
#include "coder.cuh"

KV_INLINE uint32_t states_offset(uint32_t streams) { return (2u + 2u * streams + 3u) & ~3u; }

// Takes `bytes` of the output, or `kNone`.
KV_INLINE uint32_t take_output(const EncodeParams& p, uint32_t bytes) {
  uint32_t offset = 0;
  const uint32_t padded = (bytes + 3u) & ~3u;
  if (lane_id() == 0) offset = atomicAdd(at<uint32_t>(p.output_used), padded);
  offset = __shfl_sync(kAllLanes, offset, 0);
  return padded <= p.output_bytes && offset <= p.output_bytes - padded ? offset : kNone;
}

// Adds bits to a zeroed output whose words other lanes share.
KV_INLINE void put_bits(uint32_t* words, uint64_t bit, uint32_t value) {
  const uint32_t shift = uint32_t(bit & 31u);
  const uint64_t spread = uint64_t(value) << shift;
  if (uint32_t(spread) != 0u) atomicOr(words + (bit >> 5), uint32_t(spread));
  if (spread >> 32 != 0u) atomicOr(words + (bit >> 5) + 1, uint32_t(spread >> 32));
}

KV_INLINE void write_raw(const EncodeParams& p, const EncodePiece& piece, const PieceState& state) {
  uint32_t* out = at<uint32_t>(p.output) + state.offset / 4u;
  const uint8_t* widths = at<const uint8_t>(p.widths) + piece.widths;
  if (lane_id() == 0) put_bits(out, 0, state.active | kRawFlag);
  for (uint32_t c = lane_id(); c < state.active; c += kLanes) put_bits(out, 16u + 8u * c, widths[c]);
  uint64_t bit = 16u + 8u * uint64_t(state.active);
  for (uint32_t c = 0; c < state.active; ++c) {
    const uint32_t coefficient = at<const uint32_t>(p.plans)[piece.plan + c];
    const uint32_t coding = at<const uint32_t>(p.codings)[piece.codings + c];
    const int32_t* row = at<const int32_t>(p.values) + piece.values + uint64_t(coefficient) * piece.tokens;
    for (uint32_t token = lane_id(); token < piece.tokens; token += kLanes) {
      const int32_t value = coarser_by(row[token], piece.up);
      const int32_t kept = (coding & 3u) == kCodingStage ? value : value - 3 * coarsen(value);
      put_bits(out, bit + uint64_t(token) * widths[c], uint32_t(kept) << 1 ^ uint32_t(kept >> 31));
    }
    bit += uint64_t(widths[c]) * piece.tokens;
  }
}

// Decides how a piece is stored, gives it its place and writes its head. A warp takes a piece.
KV_KERNEL(kv_place, EncodeParams, kDecodeThreads) {
  for (uint32_t item = next_item(p.counter); item < p.piece_count; item = next_item(p.counter)) {
    const EncodePiece piece = at<const EncodePiece>(p.pieces)[item];
    PieceState state = at<const PieceState>(p.piece_states)[item];
    if (state.active == 0) continue;  // absent
    StreamState* streams = at<StreamState>(p.stream_states) + piece.streams;
    const uint32_t count = (state.active + kStreamCoefficientsMax - 1) / kStreamCoefficientsMax;
    const uint32_t lanes = min(piece.tokens, kLanes);
    uint32_t words = 0;
    bool uncodable = false, space = false;
    for (uint32_t i = lane_id(); i < count; i += kLanes) {
      words += streams[i].count;
      uncodable |= streams[i].code == kStatusUncodable;
      space |= streams[i].code == kStatusSpace;
    }
    for (uint32_t step = 16; step > 0; step >>= 1) words += __shfl_xor_sync(kAllLanes, words, step);
    uncodable = __any_sync(kAllLanes, uncodable);
    space = __any_sync(kAllLanes, space) && !uncodable;
    const uint32_t coded = states_offset(count) + count * lanes * 4u + words * 2u;
    const bool raw = uncodable || coded > state.raw_bytes;
    state.bytes = raw ? state.raw_bytes : coded;
    state.offset = space ? kNone : take_output(p, state.bytes);
    state.code = state.offset == kNone ? kStatusSpace : raw ? kStatusRaw : kStatusOk;
    if (lane_id() == 0) at<PieceState>(p.piece_states)[item] = state;
    if (state.code == kStatusRaw) write_raw(p, piece, state);
    if (state.code != kStatusOk || lane_id() != 0) continue;
    uint16_t* head = at<uint16_t>(p.output) + state.offset / 2u;
    head[0] = uint16_t(state.active);
    uint32_t states_at = state.offset + states_offset(count), words_at = states_at + count * lanes * 4u;
    for (uint32_t i = 0; i < count; ++i) {
      head[1 + i] = uint16_t(streams[i].count);
      streams[i].states_at = states_at;
      streams[i].words_at = words_at;
      states_at += lanes * 4u;
      words_at += streams[i].count * 2u;
    }
  }
}

// A warp copies a stream.
KV_KERNEL(kv_pack, EncodeParams, kDecodeThreads) {
  for (uint32_t item = next_item(p.counter); item < p.stream_count; item = next_item(p.counter)) {
    const StreamSlot slot = at<const StreamSlot>(p.slots)[item];
    const StreamState stream = at<const StreamState>(p.stream_states)[item];
    const PieceState state = at<const PieceState>(p.piece_states)[slot.piece];
    if (stream.code == 0u || state.code != kStatusOk) continue;
    const EncodePiece piece = at<const EncodePiece>(p.pieces)[slot.piece];
    const uint16_t* from = at<const uint16_t>(p.words) + slot.words + piece.stream_words - stream.count;
    uint16_t* to = at<uint16_t>(p.output) + stream.words_at / 2u;
    for (uint32_t i = lane_id(); i < stream.count; i += kLanes) to[i] = from[i];
    if (lane_id() < min(piece.tokens, kLanes))
      at<uint32_t>(p.output)[stream.states_at / 4u + lane_id()] = at<const uint32_t>(p.lanes)[item * kLanes + lane_id()];
  }
}
