// matmul_one.cu: quantised weights, packed, times one row of Q8_A (matmul_type.cuh says in which order).
//
// Blocks stay for the whole launch and take every gridDim.x-th tile. Each warp has a ring in shared memory through
// which its part of the tiles comes: groups of 256 values of k, copied while those before them are added up, and the
// first ones before the kernel waits for what was launched earlier. The row lies in shared memory too; where what makes
// it is part of the launch, every block makes it.
//
// One row would leave seven of eight columns of the matrix instruction idle, and its sums in a quarter of the lanes. So
// the columns are eight blocks of k: a lane has codes of x for one of them, the others are zero, and eight instructions
// into one accumulator leave in each lane what it then has to scale.

#include "matmul_type.cuh"
#include "quantize.cuh"

namespace luce {
namespace {

constexpr int kGroupBytes = OneRow<LUCE_WEIGHT_TYPE>::group_bytes;
constexpr int kStages = OneRow<LUCE_WEIGHT_TYPE>::stages;

// A group of 256 values, as a lane reads it for one row of x.
struct Group {
  Codes codes[kUnits];
  LaneScales<LUCE_WEIGHT_TYPE> scales;

  // From shared memory, where n_units of it are.
  LUCE_DEVICE void read(const uint8_t *from, int n_units, int lane) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (j < n_units) {
        codes[j].read(from + j * P::bytes, lane);
      } else {
        codes[j].clear();
      }
    }
    scales.read(from, n_units, lane);
  }
};

// One row of x; sums are those of outputs g and g + 8, of every fourth block from t on.
LUCE_DEVICE void add_group(const Group &w, const Activation &x, int group, int lane, float (&sums)[2]) {
  const int g = lane / 4, t = lane % 4, mine = g % 2 * 4 + g / 2;
  uint32_t q[2] = {0, 0};
  if (group * 256 + 32 * mine < x.K) load_codes(x.q + group * 256 + 32 * mine, t, q);
  float d[2], d_sums[2][kSpans];
  int first[4], second[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int b = group * 8 + t + 4 * h;
    const bool is_there = 32 * b < x.K;
    d[h] = is_there ? x.d(b) : 0.0f;
    const int2 sums_of_x = (f.mins || f.zero != 0) && is_there ? x.sums(b) : int2{0, 0};
    scaled_sums(d[h], sums_of_x, d_sums[h]);
    const int2 from = start(sums_of_x);
    first[h] = first[h + 2] = from.x;
    second[h] = second[h + 2] = from.y;
  }
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    uint32_t a[4];
    w.codes[b / P::blocks].registers(b % P::blocks, a);
    const uint32_t column[2] = {mine == b ? q[0] : 0, mine == b ? q[1] : 0};
    multiply(first, second, a, column);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] =
          add_block(sums[r], first[2 * r + h], second[2 * r + h], w.scales.of(r, h, t), BlockOfX(d[h]), d_sums[h]);
    }
  }
}

// The groups of a warp, tile after tile, on their way into its ring.
struct Feed {
  const MatmulArgs &a;
  int n_units, begin, end;  // units of a row of weights; groups of this warp
  int tile, group;          // of the next copy
  const uint8_t *weight = nullptr;

  LUCE_DEVICE Feed(const MatmulArgs &a, int warp) : a(a), n_units((a.K + P::values - 1) / P::values) {
    const int n_groups = (n_units + kUnits - 1) / kUnits;
    begin = group = n_groups * warp / kWarps;
    end = n_groups * (warp + 1) / kWarps;
    tile = begin < end ? blockIdx.x : a.n_tiles();
    find();
  }

  LUCE_DEVICE int units_of(int group) const { return min(kUnits, n_units - group * kUnits); }

  LUCE_DEVICE void next(uint8_t *stage, int lane) {
    if (tile < a.n_tiles()) {
      const uint8_t *from = weight + int64_t{group} * kGroupBytes;
      const int n_bytes = units_of(group) * P::bytes;
#pragma unroll
      for (int at = 0; at < kGroupBytes; at += 16 * kLanes) {
        if (at + 16 * lane < n_bytes) copy_weights_async(stage + at + 16 * lane, from + at + 16 * lane);
      }
      if (++group == end) {
        group = begin;
        tile += gridDim.x;
        find();
      }
    }
    commit_copies();
  }

 private:
  LUCE_DEVICE void find() {
    if (tile >= a.n_tiles()) return;
    const Place place(a, tile);
    weight = place.part->weight + place.tile * P::tile_bytes(a.K);
  }
};

// The row as Q8_A in shared memory; the first block also puts it where else it is wanted.
LUCE_DEVICE void take_row(const MatmulArgs &a, const RowMaker &maker, uint8_t *x, float *room, bool is_there) {
  const RowSource &s = a.source;
  const int n_bytes = a.K / 4 * 5;
  if (s.x == nullptr) {
    const bool is_aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
    const int n_whole = is_aligned ? n_bytes / 16 * 16 : 0;
    for (int i = 16 * threadIdx.x; i < n_whole; i += 16 * kMatmulThreads) copy_async(x + i, a.x + i);
#pragma unroll 1
    for (int i = n_whole + 8 * threadIdx.x; i < n_bytes; i += 8 * kMatmulThreads) {
      *reinterpret_cast<uint2 *>(x + i) = *reinterpret_cast<const uint2 *>(a.x + i);
    }
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    return;
  }
  const bool is_first = blockIdx.x == 0 && is_there;
  maker.run(room, [&](int k, float4 v) {
    if (is_first && s.made && k < a.K) *reinterpret_cast<float4 *>(s.made + k) = v;
    quantize_four(v, x, a.K, k, k < a.K);
  });
  __syncthreads();
  if (!is_first || s.quantized == nullptr) return;
#pragma unroll 1
  for (int i = 8 * threadIdx.x; i < n_bytes; i += 8 * kMatmulThreads) {
    *reinterpret_cast<uint2 *>(s.quantized + i) = *reinterpret_cast<const uint2 *>(x + i);
  }
}

LUCE_DEVICE void matmul_one(const MatmulArgs &a) {
  extern __shared__ uint8_t memory[];  // the rings of the warps, then the row
  __shared__ float partial[2][kWarps][kTileRows], room[kWarps];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  uint8_t *const ring = memory + warp * kStages * kGroupBytes, *const row = memory + kWarps * kStages * kGroupBytes;
  Feed feed(a, warp);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) feed.next(ring + i * kGroupBytes, lane);
  const RowMaker maker(a.source, a.K);
  wait_for_previous();
  let_next_start();  // not before: one kernel that waits with its weights under way is enough

  const int n = true_rows(a.n_rows, a.bound);
  take_row(a, maker, row, room, n > 0);
  const Activation x = {row, a.K};
  int stage = 0, half = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < a.n_tiles(); tile += gridDim.x, half ^= 1) {
    const Place place(a, tile);
    const int r = threadIdx.x, j = place.tile * kTileRows + r;
    const bool puts = r < kTileRows && j < place.part->N && n > 0;
    const Rest rest = puts ? Rest(*place.part, j, 0) : Rest();
    float sums[2] = {};
#pragma unroll 1
    for (int group = feed.begin; group < feed.end; ++group) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
      Group w;
      w.read(ring + stage * kGroupBytes, feed.units_of(group), lane);
      __syncwarp();
      feed.next(ring + stage * kGroupBytes, lane);
      stage = stage + 1 < kStages ? stage + 1 : 0;
      add_group(w, x, group, lane, sums);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = __shfl_sync(kAllLanes, sums[i], lane / 4 * 4);
#pragma unroll
      for (int t = 1; t < 4; ++t) sum += __shfl_sync(kAllLanes, sums[i], lane / 4 * 4 + t);
      if (lane % 4 == 0) partial[half][warp][lane / 4 + 8 * i] = sum;
    }
    __syncthreads();
    if (!puts) continue;
    const float y = tree_sum(kWarps, [&](int w) { return partial[half][w][r]; });
    rest.put(*place.part, j, 0, y);
  }
}

}  // namespace

LUCE_MATMUL_KERNEL(LUCE_WEIGHT, 0, kFittingBlocks)(const __grid_constant__ MatmulArgs a, uint32_t *) {
  matmul_one(a);
}

}  // namespace luce
