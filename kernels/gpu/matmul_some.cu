// matmul_some.cu: quantised weights, packed, times any number of rows of Q8_A (matmul_type.cuh says in which order).
//
// Beside the weights what limits this is instructions, about 27 for each 32 values of k, 16 outputs and 8 rows, and
// reading rows from shared memory. So a warp unpacks a tile once for all rows, and rows lie there in the order in which
// lanes want them. There they stay while the block makes tile after tile. Where so many rows do not fit, a block has a
// half, a quarter or an eighth of K, with more teams of warps, and the team that comes last to a tile joins what the
// others have left.
//
// Each warp has a ring in shared memory, into which its weights are copied a group of 256 values of k ahead, the first
// ones before the kernel waits for what was launched earlier. A team joins its sums by itself.

#include "matmul_feed.cuh"
#include "matmul_records.cuh"

namespace luce {
namespace {

template <class Shape>
using Sums = float[4][Shape::n_columns][4];

// Adds a group of 256 values of k.
template <class Shape>
LUCE_DEVICE void add_group(const uint8_t *group, const uint8_t *records, int lane, Sums<Shape> &sums) {
  GroupScales<LUCE_WEIGHT_TYPE> group_scales;
  group_scales.read(group, lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    HalfCodes<LUCE_WEIGHT_TYPE> codes;
    codes.read(group, h, lane);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      Record<Shape> record;
      record.read(records + (4 * h + r) * Shape::record_bytes, lane);
      uint32_t registers[4];
      codes.registers(r, registers);
      const Scale scales[2] = {group_scales.of(0, r, h), group_scales.of(1, r, h)};
#pragma unroll
      for (int j = 0; j < Shape::n_columns; ++j) {
        const float (&values)[2 * (1 + Shape::n_sums)] = record.values[j];
        const BlockOfX x[2] = {BlockOfX(values[0]), BlockOfX(values[1])};
        float d_sums[2][kSpans] = {};
#pragma unroll
        for (int v = 0; v < Shape::n_sums; ++v) d_sums[0][v] = values[2 + 2 * v], d_sums[1][v] = values[3 + 2 * v];
        int first[4] = {kMagic, kMagic, kMagic, kMagic}, second[4] = {kMagic, kMagic, kMagic, kMagic};
        multiply(first, second, registers, record.q[j]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float &sum = sums[r][j][e];
          sum = add_block(sum, first[e], second[e], scales[e / 2], x[e % 2], d_sums[e % 2]);
        }
      }
    }
  }
}

// Where the sums of a team's tile go: a thread has one output of every few rows.
template <class Shape>
struct Outputs {
  const MatmulSomeArgs &s;
  const Team &team;
  int n, set;  // rows that are there
  Matrix matrix;
  MatmulPart part;
  int j;
  bool is_there;

  LUCE_DEVICE Outputs(const MatmulSomeArgs &s, const Team &team, int n, int set)
      : s(s), team(team), n(n), set(set), matrix(s.matmul, min(team.tile(set), s.matmul.n_tiles() - 1)) {
    part = matrix.part();
    j = matrix.tile * kTileRows + threadIdx.x % kTileRows;
    is_there = team.tile(set) < s.matmul.n_tiles() && j < part.N;
  }

  // of(row, v): the first of which values of an output. left: where their sum goes, if it is not the output.
  template <int kHeld, class Of>
  LUCE_DEVICE void join(int n_values, float *left, Of of) const {
    const int step = team.n_warps * kLanes / kTileRows;
#pragma unroll 1
    for (int first = team.thread() / kTileRows; first < n; first += kHeld * step) {
      Rest rest[kHeld];
      float y[kHeld];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int row = min(first + k * step, n - 1);
        if (!left && is_there) rest[k] = Rest(part, j, token(row));
        y[k] = tree_sum(n_values, [&](int v) { return of(row, v); });
      }
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int row = first + k * step;
        if (row >= n) break;
        if (left) {
          left[row * kTileRows + threadIdx.x % kTileRows] = y[k];
        } else if (is_there) {
          rest[k].put(part, j, token(row), y[k]);
        }
      }
    }
  }

 private:
  LUCE_DEVICE int token(int row) const { return s.first_row + blockIdx.y * Shape::n_rows + row; }
};

// Joins what the warps of a team have of a tile, or leaves it; who comes last to the tile joins what all have left.
template <class Shape>
LUCE_DEVICE void finish(const Outputs<Shape> &outputs, const float *partials) {
  __shared__ bool comes_last[kMostWarps];
  constexpr int kTileFloats = Shape::n_rows * kTileRows;
  const MatmulSomeArgs &s = outputs.s;
  const Team &team = outputs.team;
  const int n_splits = 1 << s.log_splits, r = threadIdx.x % kTileRows;
  const int place = (blockIdx.y * (s.end_set - s.first_set) + outputs.set - s.first_set) * team.n_teams + team.number;
  float *const left = s.partial + int64_t{place} * n_splits * kTileFloats;
  outputs.template join<1>(team.n_warps, n_splits > 1 ? left + blockIdx.x * kTileFloats : nullptr, [&](int row, int v) {
    return partials[v * Shape::partial_floats + row * Shape::partial_stride + r];
  });
  if (n_splits == 1) return;
  team.meet();
  if (team.thread() == 0) {
    __threadfence();
    comes_last[team.number] = atomicInc(&s.arrivals[place], n_splits - 1) == static_cast<unsigned>(n_splits - 1);
  }
  team.meet();
  if (!comes_last[team.number]) return;
  __threadfence();
  outputs.template join<4>(n_splits, nullptr,
                           [&](int row, int v) { return load_fresh(left + v * kTileFloats + row * kTileRows + r); });
}

template <class Shape>
LUCE_DEVICE void matmul_some(const MatmulSomeArgs &s) {
  extern __shared__ uint8_t memory[];  // the rings of the warps, their sums, the rows
  __shared__ uint64_t arrivals[kMostWarps][kMostStages];
  const MatmulArgs &a = s.matmul;
  const int warp = threadIdx.x / kLanes, n_warps = blockDim.x / kLanes, lane = threadIdx.x % kLanes;
  const Team team(s.log_splits);
  uint8_t *const ring = memory + warp * s.stages * Shape::group_bytes;
  float *const partials = reinterpret_cast<float *>(memory + n_warps * s.stages * Shape::group_bytes);
  uint8_t *const records = reinterpret_cast<uint8_t *>(partials + n_warps * Shape::partial_floats);
  Feed<Shape> feed(s, team, ring, arrivals[warp]);
  const int n_groups = (a.K + 255) / 256, last_group = n_groups * (team.first_eighth + team.n_warps) / 8;
  const int first_row = s.first_row + blockIdx.y * Shape::n_rows;
  for (int i = 0; i < s.stages; ++i) feed.next();
  wait_for_previous();
  let_next_start();
  const int n = min(true_rows(a.n_rows, a.bound) - first_row, Shape::n_rows);
  if (n <= 0) return;
  int there = 0;  // the first group whose rows are there
  const auto take = [&](int first) {
    there = first;
    take_rows<Shape>(a, first_row, n, 8 * first, 8 * min(s.n_groups, last_group - first), records);
    __syncthreads();
  };
  take(n_groups * team.first_eighth / 8);
  const bool takes_more = s.n_groups < last_group - there;  // bit by bit; all warps have the same eighth then
  Sums<Shape> sums = {};
  int stage = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (int set = s.first_set + blockIdx.z; set < s.end_set; set += gridDim.z) {
#pragma unroll 1
    for (int group = feed.begin; group < feed.end; ++group) {
      if (takes_more && (group < there || group >= there + s.n_groups)) {
        __syncthreads();
        take(group);
      }
      wait_for_weights(&arrivals[warp][stage], parity);
      add_group<Shape>(ring + stage * Shape::group_bytes, records + (group - there) * 8 * Shape::record_bytes, lane,
                       sums);
      __syncwarp();
      feed.next();
      if (++stage == s.stages) stage = 0, parity ^= 1;
    }
    const Outputs<Shape> outputs(s, team, n, set);
    // What they left of the tile before has been read, when all have come.
    team.meet();
    float *const mine = partials + warp * Shape::partial_floats;
#pragma unroll
    for (int c = 0; c < Shape::n_columns; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * c + 2 * (lane % 4) + e % 2, output = lane / 4 + e / 2 * 8;
        mine[row * Shape::partial_stride + output] = ((sums[0][c][e] + sums[1][c][e]) + sums[2][c][e]) + sums[3][c][e];
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[r][c][e] = 0;
      }
    }
    team.meet();
    finish(outputs, partials + team.number * team.n_warps * Shape::partial_floats);
  }
}

}  // namespace

// Of 8 * columns rows.
#define LUCE_SOME_(name, columns) LUCE_GLOBAL_WITHIN(matmul_##name##_##columns, kMostWarps *kLanes, 1)
#define LUCE_SOME(name, columns)                                                    \
  LUCE_SOME_(name, columns)(const __grid_constant__ MatmulSomeArgs s, uint32_t *) { \
    matmul_some<SomeRows<LUCE_WEIGHT_TYPE, columns>>(s);                            \
  }
LUCE_SOME(LUCE_WEIGHT, 1)
LUCE_SOME(LUCE_WEIGHT, 2)

}  // namespace luce
