// matmul_floats.h: packed F32, F16 or BF16 weights (pack_floats.h) times a few tokens of F32.
//
// A lane is a row of the weight: R vectors of rows meet M tokens, each weight is widened once for all of them, and each
// activation is broadcast. A sum is made of chains of fused multiply-adds over k, added in order: the same for every R
// and M, also where it is interrupted between two chains and taken up again. The chip's own dot product of BF16 is no
// faster: it takes two cycles where two multiply-adds of F32 take one (measured), and would round the activations.
#pragma once

#include "kernel.h"
#include "pack_floats.h"
#include "simd.h"
#include "unrolled.h"

namespace luce::LUCE_ISA {

// kLanes rows, from `lane` of a tile on, at the value k (half 0) or k + 1 (half 1) of the pair that lies at p.
template <int type, int half>
LUCE_INLINE F32 load_half(const uint8_t *p, int lane) {
  if constexpr (type == LUCE_BF16) {
    const I32 both = load<I32>(p + 4 * lane);
    return reinterpret_cast<F32>(half == 0 ? both << 16 : both & static_cast<int32_t>(0xFFFF0000));
  } else if constexpr (type == LUCE_F16) {
    return f16_to_f32(load<Half>(p + 2 * (half * kTileRows + lane)));
  } else {
    return load<F32>(p + 4 * (half * kTileRows + lane));
  }
}

// Tokens in panels: the activations of M tokens as the kernel reads them, float x[n_pairs * 2][M]; 0 beyond their end.
template <int M>
void fill_float_panel(const char *x, int64_t stride, int64_t n, int64_t n_pairs, float *panel) {
  for (int t = 0; t < M; ++t) {
    const float *from = reinterpret_cast<const float *>(x + t * stride);
    for (int64_t k = 0; k < n; ++k) panel[k * M + t] = from[k];
    if (n < 2 * n_pairs) panel[n * M + t] = 0;
  }
}

constexpr int64_t kChainPairs = 128;       // of values of k, in one chain: what a sum loses grows with its length
constexpr int kFloatPrefetchBytes = 1024;  // as in matmul_packed.h, for each of R streams

// sums[r][t] += the kLanes rows at tiles[r], lanes[r], times token t of the panel.
template <int type, int R, int M>
LUCE_INLINE void multiply_floats(const uint8_t *const *tiles, const int *lanes, const float *panel, int64_t n_pairs,
                                 F32 (&sums)[R][M]) {
  constexpr int64_t kPairBytes = 2 * float_bytes(type) * kTileRows;
  for (int64_t p = 0; p < n_pairs;) {
    F32 sum[R][M] = {};
    for (const int64_t end = std::min(p + kChainPairs, n_pairs); p < end; ++p, panel += 2 * M) {
      unrolled<R>([&]<int r>() LUCE_UNROLLED {
        const uint8_t *ahead = tiles[r] + p * kPairBytes + kFloatPrefetchBytes;
        for (int i = 0; i < kPairBytes; i += 64) __builtin_prefetch(ahead + i);
      });
      unrolled<2>([&]<int half>() LUCE_UNROLLED {  // one after the other: registers for both would be one too many
        F32 w[R];
        unrolled<R>([&]<int r>() LUCE_UNROLLED { w[r] = load_half<type, half>(tiles[r] + p * kPairBytes, lanes[r]); });
        unrolled<M>([&]<int t>() LUCE_UNROLLED {
          const F32 x = splat(panel[half * M + t]);
          unrolled<R>([&]<int r>() LUCE_UNROLLED { sum[r][t] = fma(w[r], x, sum[r][t]); });
        });
      });
    }
    unrolled<R * M>([&]<int i>() LUCE_UNROLLED { sums[i / M][i % M] += sum[i / M][i % M]; });
  }
}

}  // namespace luce::LUCE_ISA
