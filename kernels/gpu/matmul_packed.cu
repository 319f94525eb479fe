// matmul_packed.cu: quantised weights, packed, times rows of Q8_A, for any number of rows.
//
// A block makes a tile of 16 outputs for up to 16 rows: its eight warps take an eighth of K each. 32 values of k are
// one matrix instruction, whose sum is exact; it is scaled and added in float to one of four sums, that of every fourth
// block. The four are added in order, then those of the warps. So an output has the same bits for any number of rows.
//
// One row would leave seven of eight columns of the instruction idle, and its sums in a quarter of the lanes. There the
// columns are eight blocks of k instead of eight rows: a lane has codes of x for one of them, the others are zero, and
// eight instructions into one accumulator leave in each lane what it then has to scale.
//
// The accumulator of the matrix instruction begins at the bits of 1.5 * 2^23: what comes out is a float already.
// This file is compiled once for each type: LUCE_WEIGHT is its name in kernels.def, LUCE_WEIGHT_TYPE its luce_type.

#include "matmul_units.cuh"

namespace luce {
namespace {

constexpr int kWarps = kMatmulThreads / kLanes;  // and parts of K
constexpr int kMagic = 0x4B400000;               // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0f;

using P = Packing<LUCE_WEIGHT_TYPE>;
using Codes = UnitCodes<LUCE_WEIGHT_TYPE>;
using Scales = UnitScales<LUCE_WEIGHT_TYPE>;
constexpr Format f = P::f;
constexpr int kUnits = 256 / P::values;  // in a group of 256 values

LUCE_DEVICE float product_of(int accumulator) {
  return __int_as_float(accumulator) - kMagicFloat;
}

// The codes of x that a lane gives for 32 values.
LUCE_DEVICE void load_codes(const uint8_t *q, int t, uint32_t (&codes)[2]) {
  if constexpr (f.span == 32) {
    const uint2 both = *reinterpret_cast<const uint2 *>(q + 8 * t);
    codes[0] = both.x, codes[1] = both.y;
  } else {
    codes[0] = *reinterpret_cast<const uint32_t *>(q + 4 * t);
    codes[1] = *reinterpret_cast<const uint32_t *>(q + 16 + 4 * t);
  }
}

// A row of Q8_A, or none.
struct Activation {
  const uint8_t *q;
  int K;

  LUCE_DEVICE float d(int b) const { return reinterpret_cast<const float *>(q + K)[b]; }
  LUCE_DEVICE int2 sums(int b) const {
    const short2 s = reinterpret_cast<const short2 *>(q + K + K / 8)[b];
    return {s.x, s.y};
  }
};

// Where the accumulators begin: a code of x counts `zero` too much.
LUCE_DEVICE int2 start(int2 sums) {
  if constexpr (f.span == 32) return {kMagic - f.zero * (sums.x + sums.y), 0};
  return {kMagic - f.zero * sums.x, kMagic - f.zero * sums.y};
}

// Adds 32 values of k to an output: `first` is the accumulator of the instruction, or that of 16 values and `second` of
// the other 16.
LUCE_DEVICE float add_block(float sum, int first, int second, const Scale &w, float d, int2 sums) {
  if constexpr (f.span == 32) {
    sum = fmaf(product_of(first), w.d * w.scale[0] * d, sum);
    if constexpr (f.mins) sum = fmaf(w.m * w.min[0], d * static_cast<float>(sums.x + sums.y), sum);
  } else {
    // Both products and their sum are whole numbers below 2^24: exact.
    const float product = fmaf(product_of(second), w.scale[1], product_of(first) * w.scale[0]);
    sum = fmaf(product, w.d * d, sum);
    if constexpr (f.mins) {
      const float min = fmaf(static_cast<float>(sums.y), w.min[1], static_cast<float>(sums.x) * w.min[0]);
      sum = fmaf(min, w.m * d, sum);
    }
  }
  return sum;
}

LUCE_DEVICE void multiply(int (&first)[4], int (&second)[4], const uint32_t (&a)[4], const uint32_t (&q)[2]) {
  if constexpr (f.span == 32) {
    mma_s8_k32(first, a, q);
  } else {
    mma_s8_k16(first, a[0], a[1], q[0]);
    mma_s8_k16(second, a[2], a[3], q[1]);
  }
}

// A group of 256 values, as a lane reads it for one row of x.
struct Group {
  Codes codes[kUnits];
  LaneScales<LUCE_WEIGHT_TYPE> scales;

  LUCE_DEVICE void load(const uint8_t *tile, int group, int n_units, int lane) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int u = group * kUnits + j;
      if (u < n_units)
        codes[j].load(tile + int64_t{u} * P::bytes, lane);
      else
        codes[j].clear();
    }
    scales.load(tile, group, n_units, lane);
  }
};

// One row of x; sums are those of outputs g and g + 8, of every fourth block from t on.
LUCE_DEVICE void add_group(const Group &w, const Activation &x, int group, int lane, float (&sums)[2]) {
  const int g = lane / 4, t = lane % 4, mine = g % 2 * 4 + g / 2;
  uint32_t q[2] = {0, 0};
  if (group * 256 + 32 * mine < x.K) load_codes(x.q + group * 256 + 32 * mine, t, q);
  float d[2];
  int2 sums_of_x[2] = {};
  int first[4], second[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int b = group * 8 + t + 4 * h;
    const bool is_there = 32 * b < x.K;
    d[h] = is_there ? x.d(b) : 0.0f;
    if ((f.mins || f.zero != 0) && is_there) sums_of_x[h] = x.sums(b);
    const int2 from = start(sums_of_x[h]);
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
      sums[r] = add_block(sums[r], first[2 * r + h], second[2 * r + h], w.scales.of(r, h, t), d[h], sums_of_x[h]);
    }
  }
}

// Which part of the launch a block works on.
struct Place {
  const MatmulPart *part;
  int tile;

  LUCE_DEVICE explicit Place(const MatmulArgs &a) : part(a.parts), tile(blockIdx.x) {
    while (static_cast<int>(blockIdx.x) >= part->end_tile) ++part;
    if (part != a.parts) tile -= part[-1].end_tile;
  }
};

LUCE_DEVICE void put(const MatmulPart &part, int j, int token, float y) {
  if (part.bias) y += part.bias[j];
  const auto at = [=](auto *p, int64_t stride) {
    return reinterpret_cast<decltype(p)>(reinterpret_cast<uintptr_t>(p) + token * stride);
  };
  if (part.add) y += at(part.add, part.add_stride)[j];
  at(part.out, part.out_stride)[j] = y;
}

LUCE_DEVICE void matmul_one(const MatmulArgs &a) {
  __shared__ float partial[kWarps][kTileRows];
  let_next_start();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Place place(a);
  const int n_units = (a.K + P::values - 1) / P::values, n_groups = (n_units + kUnits - 1) / kUnits;
  const int end = n_groups * (warp + 1) / kWarps;
  int u = n_groups * warp / kWarps;
  const uint8_t *tile = place.part->weight + place.tile * P::tile_bytes(a.K);
  Group next;
  if (u < end) next.load(tile, u, n_units, lane);
  wait_for_previous();

  const int n = true_rows(a.n_rows, a.bound);  // looked at last: nothing waits for it
  const Activation x = {a.x, a.K};
  float sums[2] = {};
  for (; u < end; ++u) {
    const Group group = next;
    if (u + 1 < end) next.load(tile, u + 1, n_units, lane);
    add_group(group, x, u, lane, sums);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = __shfl_sync(kAllLanes, sums[r], lane / 4 * 4);
#pragma unroll
    for (int t = 1; t < 4; ++t) sum += __shfl_sync(kAllLanes, sums[r], lane / 4 * 4 + t);
    if (lane % 4 == 0) partial[warp][lane / 4 + 8 * r] = sum;
  }
  __syncthreads();
  const int r = threadIdx.x, j = place.tile * kTileRows + r;
  if (r >= kTileRows || j >= place.part->N || n == 0) return;
  float y = partial[0][r];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) y += partial[w][r];
  put(*place.part, j, 0, y);
}

// kTiles: of 8 rows of x.
template <int kTiles>
LUCE_DEVICE void matmul_some(const MatmulArgs &a) {
  constexpr int kTokens = 8 * kTiles;
  __shared__ float partial[kWarps][kTokens][kTileRows];
  let_next_start();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
  const Place place(a);
  const int n_units = (a.K + P::values - 1) / P::values, n_groups = (n_units + kUnits - 1) / kUnits;
  const int end = min(n_groups * (warp + 1) / kWarps * kUnits, n_units);
  int u = n_groups * warp / kWarps * kUnits;
  const uint8_t *tile = place.part->weight + place.tile * P::tile_bytes(a.K);
  Codes next;
  Scales next_scales;
  const auto load = [&](int unit) {
    next.load(tile + int64_t{unit} * P::bytes, lane);
    next_scales.load(tile + int64_t{unit} * P::bytes, lane);
  };
  if (u < end) load(u);
  wait_for_previous();

  const int first_row = blockIdx.y * kTokens, n = min(true_rows(a.n_rows, a.bound) - first_row, kTokens);
  if (n <= 0) return;
  // Rows that are not there are read as the last that is; nobody looks at what they make.
  const auto row_of = [&](int c) { return a.x + (first_row + min(c, n - 1)) * a.x_stride; };
  float sums[4][kTiles][4] = {};
  for (; u < end; ++u) {
    const Codes codes = next;
    const Scales scales = next_scales;
    if (u + 1 < end) load(u + 1);
#pragma unroll
    for (int b = 0; b < P::blocks; ++b) {
      const int k_block = u * P::blocks + b;
      if (32 * k_block >= a.K) break;
      uint32_t registers[4];
      codes.registers(b, registers);
      const Scale scale[2] = {scales.of(0, b), scales.of(1, b)};
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t q[2];
        load_codes(row_of(8 * j + g) + 32 * k_block, t, q);
        float d[2];
        int2 sums_of_x[2] = {};
        int first[4], second[4];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Activation x = {row_of(8 * j + 2 * t + c), a.K};
          d[c] = x.d(k_block);
          if (f.mins || f.zero != 0) sums_of_x[c] = x.sums(k_block);
          const int2 from = start(sums_of_x[c]);
          first[c] = first[c + 2] = from.x;
          second[c] = second[c + 2] = from.y;
        }
        multiply(first, second, registers, q);
        // Of units of two blocks, those of even number begin every fourth block anew.
        const auto add = [&](float (&sum)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[i] = add_block(sum[i], first[i], second[i], scale[i / 2], d[i % 2], sums_of_x[i % 2]);
          }
        };
        if (P::blocks == 8) {
          add(sums[b % 4][j]);
        } else if (u % 2 == 0) {
          add(sums[b][j]);
        } else {
          add(sums[b + 2][j]);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = ((sums[0][j][i] + sums[1][j][i]) + sums[2][j][i]) + sums[3][j][i];
      partial[warp][8 * j + 2 * t + i % 2][g + i / 2 * 8] = sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n * kTileRows; i += kMatmulThreads) {
    const int token = i / kTileRows, r = i % kTileRows, j = place.tile * kTileRows + r;
    if (j >= place.part->N) continue;
    float y = partial[0][token][r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) y += partial[w][token][r];
    put(*place.part, j, first_row + token, y);
  }
}

}  // namespace

#define LUCE_JOIN_(a, b, c) a##b##_##c
#define LUCE_JOIN(a, b, c) LUCE_JOIN_(a, b, c)
#define LUCE_MATMUL(tiles, function)                                                                       \
  LUCE_GLOBAL_(LUCE_JOIN(matmul_, LUCE_WEIGHT, tiles))(const __grid_constant__ MatmulArgs a, uint32_t *) { \
    function(a);                                                                                           \
  }
LUCE_MATMUL(0, matmul_one)
LUCE_MATMUL(1, matmul_some<1>)
LUCE_MATMUL(2, matmul_some<2>)

}  // namespace luce
