// matmul_rows.h: a few rows of F32, F16 or BF16 experts, as they lie in the file, times a few tokens of F32.
//
// A lane is a residue of k: R x M vectors of sums advance along k together, so that each load serves M or R products.
// A sum's order over k is the same for every R and M, also at the end where K is no multiple of the lanes.
#pragma once

#include "kernel.h"
#include "simd.h"

namespace luce::LUCE_ISA {

// A type of weights: its values in memory, and kLanes (or the first n) of them as F32.
struct WeightF32 {
  typedef float Value;
  static F32 to_float(F32 v) { return v; }
  typedef F32 Vector;
};
struct WeightF16 {
  typedef uint16_t Value;
  static F32 to_float(Half v) { return f16_to_f32(v); }
  typedef Half Vector;
};
struct WeightBF16 {
  typedef uint16_t Value;
  static F32 to_float(Half v) { return bf16_to_f32(v); }
  typedef Half Vector;
};

// sums[r * M + t] = row r of the weight times token t; strides in bytes.
template <class Weight, int R, int M>
LUCE_INLINE void multiply_rows(const char *weight, int64_t weight_stride, const char *x, int64_t x_stride, int64_t K,
                               float *sums) {
  typedef typename Weight::Vector Vector;
  F32 sum[R][M] = {};
  auto step = [&](int64_t k, auto load_w, auto load_x) __attribute__((always_inline)) {
    F32 w[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      w[r] = Weight::to_float(load_w(weight + r * weight_stride + k * sizeof(typename Weight::Value)));
    }
#pragma GCC unroll 8
    for (int t = 0; t < M; ++t) {
      const F32 v = load_x(x + t * x_stride + k * sizeof(float));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][t] = fma(w[r], v, sum[r][t]);
    }
  };
  int64_t k = 0;
  for (; k + kLanes <= K; k += kLanes) step(k, load<Vector>, load<F32>);
  if (k < K) {
    step(
        k, [&](const char *p) { return load_first<Vector>(p, K - k); },
        [&](const char *p) { return load_first<F32>(p, K - k); });
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < M; ++t) sums[r * M + t] = luce::LUCE_ISA::sum(sum[r][t]);
  }
}

}  // namespace luce::LUCE_ISA
