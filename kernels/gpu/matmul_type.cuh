// matmul_type.cuh: the arithmetic of quantised weights times rows of Q8_A, if nothing else is said for the type that a
// file is compiled for: LUCE_WEIGHT is its name in kernels.def, LUCE_WEIGHT_TYPE its luce_type.
//
// A tile is 16 outputs; a warp takes an eighth of K. The products of 32 values of k, or of 16 under one scale, are a
// matrix instruction, whose sum is exact. Times the scale of x it is rounded, times that of the weight it is added to
// one of four sums, that of every fourth block. The four are added in order, those of the eighths as a tree. So an
// output has the same bits for any number of rows.
//
// The accumulator of the matrix instruction begins at the bits of 1.5 * 2^23: what comes out is a float already, from
// which the multiplication by the scale of x also takes the 1.5 * 2^23. For that the scale has 22 bits.
#pragma once

#include "matmul_units.cuh"

namespace luce {
namespace {

constexpr int kWarps = kMatmulThreads / kLanes;  // and parts of K
constexpr int kMagic = 0x4B400000;               // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0f;

using P = Packing<LUCE_WEIGHT_TYPE>;
constexpr Format f = P::f;
constexpr int kUnits = 256 / P::values;  // in a group of 256 values
constexpr int kSpans = 32 / f.span;      // in a block of 32 values

template <int type>
constexpr Format kFormat = Packing<type>::f;
template <int type>
constexpr int kSpansOf = 32 / kFormat<type>.span;

// Of 32 values of x beside their codes: the scale, and what an accumulator times it has too much.
struct BlockOfX {
  float d, excess;

  LUCE_DEVICE explicit BlockOfX(float d) : d(d), excess(-kMagicFloat * d) {}
  LUCE_DEVICE float times(int accumulator) const { return fmaf(__int_as_float(accumulator), d, excess); }
};

// The sum of n = 1, 2, 4 or 8 values, as a tree; all are on their way at once.
template <class Get>
LUCE_DEVICE float tree_sum(int n, Get get) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < n ? get(i) : 0.0f;
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// The codes of x that a lane gives for 32 values.
template <int type = LUCE_WEIGHT_TYPE>
LUCE_DEVICE void load_codes(const uint8_t *q, int t, uint32_t (&codes)[2]) {
  if constexpr (kFormat<type>.span == 32) {
    const uint2 both = *reinterpret_cast<const uint2 *>(q + 8 * t);
    codes[0] = both.x, codes[1] = both.y;
  } else {
    codes[0] = *reinterpret_cast<const uint32_t *>(q + 4 * t);
    codes[1] = *reinterpret_cast<const uint32_t *>(q + 16 + 4 * t);
  }
}

// What is used of a scale of x: 22 bits.
LUCE_DEVICE float used(float d) {
  return __uint_as_float(__float_as_uint(d) & ~3u);
}

// A row of Q8_A, or none.
struct Activation {
  const uint8_t *q;
  int K;

  LUCE_DEVICE float d(int b) const { return used(reinterpret_cast<const float *>(q + K)[b]); }
  LUCE_DEVICE int2 sums(int b) const {
    const short2 s = reinterpret_cast<const short2 *>(q + K + K / 8)[b];
    return {s.x, s.y};
  }
};

// Where the accumulators begin: a code of x counts `zero` too much.
template <int type = LUCE_WEIGHT_TYPE>
LUCE_DEVICE int2 start(int2 sums) {
  if constexpr (kFormat<type>.span == 32) return {kMagic - kFormat<type>.zero * (sums.x + sums.y), 0};
  return {kMagic - kFormat<type>.zero * sums.x, kMagic - kFormat<type>.zero * sums.y};
}

// Of 16 or 32 values of x under one scale of the weight: d times the sum of the codes.
template <int type = LUCE_WEIGHT_TYPE>
LUCE_DEVICE void scaled_sums(float d, int2 sums, float (&out)[kSpansOf<type>]) {
  if constexpr (kFormat<type>.span == 32) {
    out[0] = d * static_cast<float>(sums.x + sums.y);
  } else {
    out[0] = d * static_cast<float>(sums.x), out[1] = d * static_cast<float>(sums.y);
  }
}

// Adds 32 values of k to an output: `first` is the accumulator of the instruction, or that of 16 values and `second` of
// the other 16.
template <int type = LUCE_WEIGHT_TYPE>
LUCE_DEVICE float add_block(float sum, int first, int second, const Scale &w, const BlockOfX &x,
                            const float (&d_sums)[kSpansOf<type>]) {
  sum = fmaf(x.times(first), w.scale[0], sum);
  if constexpr (kFormat<type>.span == 16) sum = fmaf(x.times(second), w.scale[1], sum);
  if constexpr (kFormat<type>.mins) {
#pragma unroll
    for (int i = 0; i < kSpansOf<type>; ++i) sum = fmaf(w.min[i], d_sums[i], sum);
  }
  return sum;
}

template <int type = LUCE_WEIGHT_TYPE>
LUCE_DEVICE void multiply(int (&first)[4], int (&second)[4], const uint32_t (&a)[4], const uint32_t (&q)[2]) {
  if constexpr (kFormat<type>.span == 32) {
    mma_s8_k32(first, a, q);
  } else {
    mma_s8_k16(first, a[0], a[1], q[0]);
    mma_s8_k16(second, a[2], a[3], q[1]);
  }
}

}  // namespace
}  // namespace luce

// The kernel of this type for so many tiles of 8 tokens, as kernels.def names it.
#define LUCE_MATMUL_KERNEL_(name, tiles, threads) LUCE_GLOBAL_WITHIN(matmul_##name##_##tiles, threads, 1)
#define LUCE_MATMUL_KERNEL(name, tiles, threads) LUCE_MATMUL_KERNEL_(name, tiles, threads)
