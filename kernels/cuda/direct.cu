// Direct profiles in one pass: streams to rows in the engine's pages, through a tile of shared memory.
#include "entropy.cuh"
#include "pages.cuh"
#include "steps.cuh"

// Lane = token while decoding, lane = element while storing; the tile turns one into the other.
struct TileSink {
  const DecodeParams& p;
  const Step* steps;
  const Element* elements;
  Placement place;
  Tile tile;
  uint32_t tokens;

  KV_INLINE int32_t load(uint32_t, uint32_t, bool) const { return 0; }
  KV_INLINE void store(uint32_t c, uint32_t, bool, int32_t value) {
    tile.cell(c, lane_id()) = denormalise(float(reconstruct(value, steps[c])), elements[c]);
  }
  KV_INLINE void row_done(uint32_t first_token, bool) {
    __syncwarp();
    store_tile(p.pages, place, tile, first_token, tokens);
    __syncwarp();
  }
};

template <int LEVELS>
KV_INLINE void decode_direct(const DecodeParams& p) {
  KV_SHARED(shared);
  Bank bank;
  const uint32_t bank_bytes = load_bank(shared, p.tables, p.stage_tables, p.trit_tables, bank);
  float* tiles = reinterpret_cast<float*>(shared + bank_bytes);
  float* mine = tiles + warp_id() * p.pages.tile_columns * kTileStride;
  for (uint32_t item = next_item(p.counter); item < p.task_count; item = next_item(p.counter)) {
    const Task task = at<const Task>(p.tasks)[item];
    const Placement place = at<const Placement>(p.pages.placements)[task.placement];
    TileSink sink{p,
                  at<const Step>(p.steps) + task.steps,
                  at<const Element>(p.pages.elements) + place.elements + task.first,
                  place,
                  Tile{mine, task.first, task.count},
                  task.tokens};
    decode_task<LEVELS>(p, bank, task, sink);
  }
}

KV_KERNEL(kv_direct_1, DecodeParams, kTileThreads) { decode_direct<1>(p); }
KV_KERNEL(kv_direct_2, DecodeParams, kTileThreads) { decode_direct<2>(p); }
KV_KERNEL(kv_direct_3, DecodeParams, kTileThreads) { decode_direct<3>(p); }
KV_KERNEL(kv_direct_4, DecodeParams, kTileThreads) { decode_direct<4>(p); }
