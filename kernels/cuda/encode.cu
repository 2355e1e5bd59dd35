// Quantised values to streams: all levels of a batch in one launch each, a warp a stream.
#include "coder.cuh"

KV_INLINE uint32_t zigzag(int32_t value) { return uint32_t(value) << 1 ^ uint32_t(value >> 31); }

// What a raw piece stores of a value of the piece's level: the value, or the digit that refines it.
KV_INLINE uint32_t stored_value(uint32_t coding, int32_t value) {
  return zigzag((coding & 3u) == kCodingStage ? value : value - 3 * coarsen(value));
}

// Bits of every coefficient, so that the last one that says anything is known. A warp takes 32 of a piece's.
KV_KERNEL(kv_measure, EncodeParams, kDecodeThreads) {
  for (uint32_t item = next_item(p.counter); item < p.stream_count * 4u; item = next_item(p.counter)) {
    const StreamSlot slot = at<const StreamSlot>(p.slots)[item >> 2];
    const EncodePiece piece = at<const EncodePiece>(p.pieces)[slot.piece];
    const uint32_t first = slot.index * kStreamCoefficientsMax + (item & 3u) * kLanes;
    uint32_t mine = 0;
    for (uint32_t i = 0; i < kLanes && first + i < piece.count; ++i) {
      const uint32_t c = at<const uint32_t>(p.plans)[piece.plan + first + i];
      const uint32_t coding = at<const uint32_t>(p.codings)[piece.codings + first + i];
      const int32_t* row = at<const int32_t>(p.values) + piece.values + uint64_t(c) * piece.tokens;
      uint32_t used = 0;
      for (uint32_t token = lane_id(); token < piece.tokens; token += kLanes)
        used |= stored_value(coding, coarser_by(row[token], piece.up));
      for (uint32_t bits = 16; bits > 0; bits >>= 1) used |= __shfl_xor_sync(kAllLanes, used, bits);
      if (lane_id() == i) mine = 32u - uint32_t(__clz(int32_t(used)));
    }
    if (first + lane_id() < piece.count) at<uint8_t>(p.widths)[piece.widths + first + lane_id()] = uint8_t(mine);
  }
}

// Active coefficients and raw size of a piece. A warp takes a piece; pieces of spans that are stored exactly are absent.
KV_KERNEL(kv_cut, EncodeParams, kDecodeThreads) {
  for (uint32_t item = next_item(p.counter); item < p.piece_count; item = next_item(p.counter)) {
    const EncodePiece piece = at<const EncodePiece>(p.pieces)[item];
    const bool exact = at<const uint32_t>(p.flags)[piece.flag] != 0u;
    const uint8_t* widths = at<const uint8_t>(p.widths) + piece.widths;
    uint32_t active = 0, bits = 0;
    for (uint32_t c = lane_id(); c < piece.count && !exact; c += kLanes) {
      if (widths[c] > 0) active = c + 1;
      bits += widths[c];
    }
    for (uint32_t step = 16; step > 0; step >>= 1) {
      active = max(active, __shfl_xor_sync(kAllLanes, active, step));
      bits += __shfl_xor_sync(kAllLanes, bits, step);
    }
    const uint32_t raw_bytes = 2u + active + uint32_t((uint64_t(bits) * piece.tokens + 7u) / 8u);
    const PieceState state{active, raw_bytes, 0, kNone, active == 0 ? kStatusOk : 0u, 0};
    if (lane_id() == 0) at<PieceState>(p.piece_states)[item] = state;
  }
}

// One stream: rows of 32 tokens from the last to the first, coefficients from the last to the first.
KV_INLINE void encode_stream(const EncodeParams& p, const SymbolBank& bank, const EncodePiece& piece, uint32_t from,
                             uint32_t to, BackwardCoder& coder) {
  const uint32_t* plan = at<const uint32_t>(p.plans) + piece.plan;
  const uint32_t* codings = at<const uint32_t>(p.codings) + piece.codings;
  const int32_t* values = at<const int32_t>(p.values) + piece.values;
  for (uint32_t rows = (piece.tokens + kLanes - 1) / kLanes; rows > 0 && !coder.full; --rows) {
    const uint32_t token = (rows - 1) * kLanes + lane_id();
    const bool valid = token < piece.tokens;
    for (uint32_t c = to; c > from && !coder.full; --c) {
      const uint32_t coding = codings[c - 1];
      int32_t value = valid ? coarser_by(values[uint64_t(plan[c - 1]) * piece.tokens + token], piece.up) : 0;
      const Symbol* trits = bank.trit + (coding >> 16 & 0xffu) * 8u;
      if ((coding & 3u) == kCodingTrit) {
        coder.trit(trits, valid, value);
        continue;
      }
      for (uint32_t count = coding >> 4 & 15u; count > 0; --count) coder.trit(trits, valid, value);
      const uint32_t table = coding >> 8 & 0xffu;
      coder.stage(bank.stage + table * kAlphabet, bank.inverted + table * kProbabilityOne, valid, value);
    }
  }
}

KV_KERNEL(kv_encode, EncodeParams, kDecodeThreads) {
  KV_SHARED(shared);
  SymbolBank bank;
  load_symbols(shared, p, bank);
  for (uint32_t item = next_item(p.counter); item < p.stream_count; item = next_item(p.counter)) {
    const StreamSlot slot = at<const StreamSlot>(p.slots)[item];
    const EncodePiece piece = at<const EncodePiece>(p.pieces)[slot.piece];
    const uint32_t active = at<const PieceState>(p.piece_states)[slot.piece].active;
    const uint32_t streams = (active + kStreamCoefficientsMax - 1) / kStreamCoefficientsMax;
    StreamState state{};
    if (slot.index < streams) {
      BackwardCoder coder;
      coder.open(at<uint16_t>(p.words) + slot.words, piece.stream_words);
      encode_stream(p, bank, piece, slot.index * active / streams, (slot.index + 1) * active / streams, coder);
      at<uint32_t>(p.lanes)[item * kLanes + lane_id()] = coder.x;
      state.count = piece.stream_words - coder.top;
      const bool uncodable = __any_sync(kAllLanes, coder.uncodable) || state.count > kStreamWordsMax;
      state.code = uncodable ? kStatusUncodable : coder.full ? kStatusSpace : kStatusOk;
    }
    if (lane_id() == 0) at<StreamState>(p.stream_states)[item] = state;
  }
}
