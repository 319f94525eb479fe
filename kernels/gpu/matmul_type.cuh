// matmul_type.cuh: the arithmetic of quantised weights times rows of Q8_A, for the type that a file is compiled for:
// LUCE_WEIGHT is its name in kernels.def, LUCE_WEIGHT_TYPE its luce_type.
//
// A tile is 16 outputs; a block's eight warps take an eighth of K each. 32 values of k are one matrix instruction,
// whose sum is exact; it is scaled and added in float to one of four sums, that of every fourth block. The four are
// added in order, then those of the warps. So an output has the same bits for any number of rows.
//
// The accumulator of the matrix instruction begins at the bits of 1.5 * 2^23: what comes out is a float already.
#pragma once

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

}  // namespace
}  // namespace luce

// The kernel of this type for so many tiles of 8 tokens, as kernels.def names it.
#define LUCE_MATMUL_KERNEL_(name, tiles, threads, blocks) LUCE_GLOBAL_WITHIN(matmul_##name##_##tiles, threads, blocks)
#define LUCE_MATMUL_KERNEL(name, tiles, blocks) LUCE_MATMUL_KERNEL_(name, tiles, kMatmulThreads, blocks)
