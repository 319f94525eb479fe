// matmul_some.cu: quantised weights, packed, times any number of rows of Q8_A (matmul_type.cuh says in which order).
//
// Beside the weights what limits this is instructions, about ten for each 32 values of k, 16 outputs and 8 rows. So a
// warp unpacks a tile once for all rows and reads rows once for two tiles, and rows lie in shared memory in the order
// in which lanes want them. There they stay while the block makes tile after tile. Where so many rows do not fit, a
// block has a half, a quarter or an eighth of K, with more tiles at a time, and the block that comes last to a tile
// joins what the others have left.
//
// Each warp has a ring in shared memory, into which its weights are copied a group of 256 values of k ahead, the first
// ones before the kernel waits for what was launched earlier.

#include "matmul_feed.cuh"
#include "matmul_records.cuh"

namespace luce {
namespace {

template <int kColumns, int kTiles>
using Sums = float[kTiles][4][kColumns][4];

// Adds a group of 256 values of k. `next` is what the lane wants of its first record, and then of the one after its
// last: records are read while those before them are added up.
template <class Shape, int kColumns, int kTiles>
LUCE_DEVICE void add_group(const uint8_t *stage, const uint8_t *records, int lane, Record<Shape, kColumns> &next,
                           Sums<kColumns, kTiles> &sums) {
  GroupScales<LUCE_WEIGHT_TYPE> group_scales[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) group_scales[i].read(stage + i * Shape::group_bytes, lane);
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    HalfCodes<LUCE_WEIGHT_TYPE> codes[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) codes[i].read(stage + i * Shape::group_bytes, h, lane);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Record<Shape, kColumns> record = next;
      next.read(records += Shape::record_bytes, lane);
      uint32_t registers[kTiles][4];
      Scale scales[kTiles][2];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        codes[i].registers(r, registers[i]);
        scales[i][0] = group_scales[i].of(0, r, h);
        scales[i][1] = group_scales[i].of(1, r, h);
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float (&values)[2 * (1 + Shape::n_sums)] = record.values[j];
        const BlockOfX x[2] = {BlockOfX(values[0]), BlockOfX(values[1])};
        float d_sums[2][kSpans] = {};
#pragma unroll
        for (int v = 0; v < Shape::n_sums; ++v) d_sums[0][v] = values[2 + 2 * v], d_sums[1][v] = values[3 + 2 * v];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          int first[4] = {kMagic, kMagic, kMagic, kMagic}, second[4] = {kMagic, kMagic, kMagic, kMagic};
          multiply(first, second, registers[i], record.q[j]);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float &sum = sums[i][r][j][e];
            sum = add_block(sum, first[e], second[e], scales[i][e / 2], x[e % 2], d_sums[e % 2]);
          }
        }
      }
    }
  }
}

// The outputs of a set: a thread has one of a tile, of every kStep-th row; of each it adds n values, `stride` floats
// from each other.
template <class Shape, int kTiles>
struct Outputs {
  static constexpr int kStep = kMatmulThreads / Shape::n_outputs;
  static constexpr int kHeld = Shape::n_rows > kStep ? Shape::n_rows / kStep : 1;

  const MatmulSomeArgs &s;
  int n, set;  // rows

  // from(team, row): where the first is. left: where the sum goes, if it is not the output.
  template <class From>
  LUCE_DEVICE void add(From from, int n_values, int64_t stride, float *left) const {
    const int r = threadIdx.x % Shape::n_outputs, n_teams = 1 << s.log_splits;
#pragma unroll 1
    for (int i = threadIdx.x / Shape::n_outputs; i < n_teams * Shape::n_rows; i += kHeld * kStep) {
      const int team = i / Shape::n_rows;
      float y[kHeld];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const float *values = from(team, i % Shape::n_rows + k * kStep) + r;
        y[k] = tree_sum(n_values, [&](int v) { return *static_cast<const volatile float *>(values + v * stride); });
      }
      const int tile = ((set << s.log_splits) + team) * kTiles + r / kTileRows;
      const Matrix matrix(s.matmul, min(tile, s.matmul.n_tiles() - 1));
      const MatmulPart part = matrix.part();
      const int j = matrix.tile * kTileRows + r % kTileRows;
      if (!left && (tile >= s.matmul.n_tiles() || j >= part.N)) continue;
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int row = i % Shape::n_rows + k * kStep, token = s.first_row + blockIdx.y * Shape::n_rows + row;
        if (left) {
          left[(team * Shape::n_rows + row) * Shape::n_outputs + r] = y[k];
        } else if (row < n) {
          Rest(part, j, token).put(part, j, token, y[k]);
        }
      }
    }
  }
};

// Joins what the warps have of a set, or leaves it; who comes last to the set joins what all have left.
template <class Shape, int kTiles>
LUCE_DEVICE void finish(const MatmulSomeArgs &s, int n, int set, const float *partial) {
  __shared__ bool comes_last;
  const Outputs<Shape, kTiles> outputs = {s, n, set};
  constexpr int kTeamFloats = Shape::n_rows * Shape::n_outputs;
  const int n_splits = 1 << s.log_splits, n_eighths = kWarps >> s.log_splits;
  const int place = blockIdx.y * (s.end_set - s.first_set) + set - s.first_set;
  float *const left = s.partial + int64_t{place} * n_splits * n_splits * kTeamFloats;
  const float *from = partial;
  int n_values = n_eighths, team_stride = n_eighths * Shape::partial_floats, row_stride = Shape::partial_stride;
  int stride = Shape::partial_floats;
  float *to = n_splits > 1 ? left + blockIdx.x * n_splits * kTeamFloats : nullptr;
#pragma unroll 1
  while (true) {
    outputs.add([&](int team, int row) { return from + team * team_stride + row * row_stride; }, n_values, stride, to);
    if (to == nullptr) return;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      comes_last = atomicInc(&s.arrivals[place], n_splits - 1) == static_cast<unsigned>(n_splits - 1);
    }
    __syncthreads();
    if (!comes_last) return;
    __threadfence();
    from = left, n_values = n_splits, stride = n_splits * kTeamFloats, team_stride = kTeamFloats;
    row_stride = Shape::n_outputs, to = nullptr;
  }
}

template <int kColumns, int kTiles>
LUCE_DEVICE void matmul_some(const MatmulSomeArgs &s) {
  using Shape = SomeRows<LUCE_WEIGHT_TYPE, kColumns, kTiles>;
  extern __shared__ uint8_t memory[];  // the rings of the warps, their sums of two sets, the rows
  __shared__ uint64_t arrivals[kWarps][kMostStages * kTiles];
  const MatmulArgs &a = s.matmul;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
  const int log_eighths = 3 - s.log_splits, first_eighth = blockIdx.x << log_eighths;
  uint8_t *const ring = memory + warp * s.stages * Shape::stage_bytes;
  float *const partials = reinterpret_cast<float *>(memory + kWarps * s.stages * Shape::stage_bytes);
  uint8_t *const records = reinterpret_cast<uint8_t *>(partials) + 2 * Shape::partial_bytes;
  Feed<Shape, kTiles> feed(s, warp >> log_eighths, first_eighth + warp % (1 << log_eighths), ring, arrivals[warp]);
  const int n_groups = (a.K + 255) / 256, first_group = n_groups * first_eighth / kWarps;
  const int last_group = n_groups * (first_eighth + (1 << log_eighths)) / kWarps;
  const int first_row = s.first_row + blockIdx.y * Shape::n_rows;
  int n = 0, set = s.first_set + blockIdx.z, group = feed.begin, stage = 0, n_free = s.stages;
  unsigned parity = 0, half = 0;
  bool is_first = true;
  Sums<kColumns, kTiles> sums = {};
  Record<Shape, kColumns> next;
  int there = 0;  // the first group whose rows are there
  const auto take = [&](int first) {
    there = first;
    take_rows<Shape>(a, first_row, n, 8 * first, 8 * min(s.n_groups, last_group - first), records);
    __syncthreads();
  };
#pragma unroll 1
  while (set < s.end_set) {
#pragma unroll 1
    for (; n_free > 0; --n_free) feed.next();
    if (is_first) {
      is_first = false;
      wait_for_previous();
      let_next_start();
      n = min(true_rows(a.n_rows, a.bound) - first_row, Shape::n_rows);
      if (n <= 0) return;
      take(first_group);
    } else if (s.n_groups < last_group - first_group && (group < there || group >= there + s.n_groups)) {
      // All warps have the same eighth then.
      __syncthreads();
      take(group);
    }
    if (group < feed.end) {
      const uint8_t *record = records + (group - there) * 8 * Shape::record_bytes;
      if (group == feed.begin || group == there) next.read(record, lane);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) wait_for_weights(&arrivals[warp][stage * kTiles + i], parity);
      add_group<Shape, kColumns, kTiles>(ring + stage * Shape::stage_bytes, record, lane, next, sums);
      __syncwarp();
      n_free = 1;
      if (++stage == s.stages) stage = 0, parity ^= 1;
      if (++group < feed.end) continue;
    }
    // The sums of two sets before this one have been read: all have met since.
    float *const partial = partials + half * (Shape::partial_bytes / 4);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = 8 * j + 2 * t + e % 2, output = i * kTileRows + g + e / 2 * 8;
          partial[warp * Shape::partial_floats + row * Shape::partial_stride + output] =
              ((sums[i][0][j][e] + sums[i][1][j][e]) + sums[i][2][j][e]) + sums[i][3][j][e];
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[i][r][j][e] = 0;
        }
      }
    }
    __syncthreads();
    finish<Shape, kTiles>(s, n, set, partial);
    half ^= 1;
    group = feed.begin;
    set += gridDim.z;
  }
}

}  // namespace

// Of 8 * columns rows, so many tiles for each warp at once.
#define LUCE_SOME_(name, columns, tiles) LUCE_GLOBAL_WITHIN(matmul_##name##_##columns##_##tiles, kMatmulThreads, 1)
#define LUCE_SOME(name, columns, tiles)                                                    \
  LUCE_SOME_(name, columns, tiles)(const __grid_constant__ MatmulSomeArgs s, uint32_t *) { \
    matmul_some<columns, tiles>(s);                                                        \
  }
LUCE_SOME(LUCE_WEIGHT, 1, 1)
LUCE_SOME(LUCE_WEIGHT, 2, 1)
LUCE_SOME(LUCE_WEIGHT, 2, 2)

}  // namespace luce
