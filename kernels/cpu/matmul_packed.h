// matmul_packed.h: a tile of packed weights (pack.h) times a few tokens of Q8_A.
//
// A lane is a row of the weight. For each 32 values of k the codes are expanded once and meet M tokens: eight dot
// products of four with activations that are broadcast, then one conversion and one or two fused multiply-adds into
// the token's sum. Codes that stand for values of a table go through it as one shuffle of bytes. Zero points and minima
// are taken off with the sums of the activations, which are exact. What is added, and its order over k, is the same for
// every M: a token's bits do not depend on its company.
#pragma once

#include "kernel.h"
#include "pack.h"
#include "scales.h"

namespace luce::LUCE_ISA {

// As the kernel sees it: dot16<8> may take levels as signed already.
constexpr int zero_of(const Format &f) {
  return level_bits(f) == 8 && kSigned8 ? 0 : f.zero;
}

// Tokens in panels: the activations of M tokens as the kernel reads them, one stream. For each 32 values of k:
//   int8 q[8][M][4], float d[M], and for each span of the format one of
//   int32 [M], -zero * sum of q, or float [M], d * sum of q, for formats with a zero point or with minima.
constexpr int panel_extras(const Format &f) {
  return f.mins || zero_of(f) != 0 ? 32 / f.span : 0;
}
constexpr int panel_block_bytes(const Format &f) {
  return 36 + 4 * panel_extras(f);
}  // of one token
constexpr int64_t panel_bytes(const Format &f, int64_t K) {
  return K / 32 * panel_block_bytes(f);
}

// K values of Q8_A, somewhere in a row.
struct Q8Values {
  const char *q, *d, *sums;
};

// Those from `begin` on of the row at x, which has `width` values.
inline Q8Values q8_values(const char *x, int64_t width, int64_t begin) {
  const char *d = x + width, *sums = d + width / 32 * 4;
  return {x + begin, d + begin / 32 * 4, sums + begin / 32 * 4};
}

// M tokens of K values to a panel.
template <Format f, int M>
void fill_panel(const Q8Values (&tokens)[M], int64_t K, uint8_t *panel) {
  for (int t = 0; t < M; ++t) {
    const Q8Values &x = tokens[t];
    uint8_t *out = panel + 4 * t;
    for (int64_t b = 0; b < K / 32; ++b, out += M * panel_block_bytes(f)) {
      for (int g = 0; g < 8; ++g) std::memcpy(out + 4 * M * g, x.q + 32 * b + 4 * g, 4);
      const float scale = load<float>(x.d + 4 * b);
      store(out + 32 * M, scale);
      for (int s = 0; s < panel_extras(f); ++s) {
        int32_t sum = load<int16_t>(x.sums + 4 * b + 2 * s);
        if (f.span == 32) sum += load<int16_t>(x.sums + 4 * b + 2);
        uint8_t *extra = out + (36 + 4 * s) * M;
        if (f.mins) {
          store(extra, scale * static_cast<float>(sum));
        } else {
          store(extra, -zero_of(f) * sum);
        }
      }
    }
  }
}

// M whole rows, `stride` bytes apart.
template <Format f, int M>
void fill_panel(const char *x, int64_t stride, int64_t K, uint8_t *panel) {
  Q8Values tokens[M];
  for (int t = 0; t < M; ++t) tokens[t] = q8_values(x + t * stride, K, 0);
  fill_panel<f, M>(tokens, K, panel);
}

// How far ahead of the codes memory is asked for more: the chip's own prefetcher stops at each page and each tile. With
// one token this reads half as fast again (measured, matrices larger than the caches); many tokens do not notice.
constexpr int kPrefetchBytes = 2048;

LUCE_INLINE U8 shifted(U8 v, int right) {
  const U16 wide = reinterpret_cast<U16>(v);
  return reinterpret_cast<U8>(right >= 0 ? wide >> right : wide << -right);
}

// Codes of group g (k / 4) of the 32 values at `codes`.
template <Format f>
LUCE_INLINE U8 expand_codes(const uint8_t *codes, int g) {
  constexpr int low = low_bits(f), high = f.bits - low;
  constexpr uint8_t low_mask = (1 << low) - 1, high_mask = ((1 << high) - 1) << low;
  if constexpr (low == 8) {
    return load<U8>(codes + 64 * g);
  } else {
    const int shift = low == 4 ? g / 4 * 4 : g % 4 * 2;
    U8 code = shifted(load<U8>(codes + 64 * (low == 4 ? g % 4 : g / 4)), shift) & low_mask;
    if constexpr (high > 0) {
      const U8 plane = load<U8>(codes + 64 * (low + g * high / 8));
      code |= shifted(plane, g * high % 8 - low) & high_mask;
    }
    return code;
  }
}

// The levels of codes, as dot16 takes them.
template <Format f>
LUCE_INLINE U8 levels_of(U8 code) {
  const U8 level = f.levels.given ? look_up(f.levels.of, code) : code;
  return level_bits(f) == 8 && kSigned8 ? level ^ 0x80 : level;
}

template <Format f>
LUCE_INLINE U8 expand(const uint8_t *codes, int g) {
  return levels_of<f>(expand_codes<f>(codes, g));
}

// The scales of a block for kLanes rows.
template <Format f>
LUCE_INLINE F32 block_scale(const uint8_t *scales, int lane) {
  if constexpr (f.scales == Scales::kPowers) {
    return half_e8m0(widen(load<Bytes>(scales + lane)) & 255);
  } else if constexpr (f.scales == Scales::kFloats) {
    return F32{};
  } else {
    const F32 d = f16_to_f32(load<Half>(scales + 2 * lane));
    return f.unit == 1 ? d : d * f.unit;
  }
}

// sums[t] = the kLanes rows of a tile from `lane` on, times token t of the panel.
template <Format f, int M>
LUCE_INLINE void multiply_packed(const uint8_t *tile, int lane, const uint8_t *panel, int64_t K, F32 *sums) {
  const uint8_t *codes = tile + 4 * lane;
  const uint8_t *scales = tile + tile_code_bytes(f, K);
  F32 sum[M] = {};
  for (int64_t b = K / f.values; b > 0; --b, scales += block_scale_bytes(f)) {
    const F32 block_d = block_scale<f>(scales, lane);
    const F32 block_m = f.mins ? f16_to_f32(load<Half>(scales + 2 * (kTileRows + lane))) : F32{};
    const uint8_t *span = scales + block_d_bytes(f) + lane;
#pragma GCC unroll 1
    for (int c = 0; c < f.values / 32; ++c, codes += code_bytes(f), panel += M * panel_block_bytes(f)) {
      for (int i = 0; i < code_bytes(f); i += 64) __builtin_prefetch(codes + kPrefetchBytes + i);
      I32 dot[M];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int s = f.span == 16 ? half : 0;
        const uint8_t *extra = panel + (36 + 4 * s) * M;
        U8 w[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) w[j] = expand<f>(codes, 4 * half + j);
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) {
          if (f.span == 16 || half == 0) {
            dot[t] = zero_of(f) != 0 ? splat(load<int32_t>(extra + 4 * t)) : I32{};
          }
          dot[t] = dot16<level_bits(f)>(dot[t], w, panel + 16 * M * half + 4 * t, 4 * M);
        }
        if (f.span == 32 && half == 0) continue;
        F32 d = block_d, m = block_m;
        if constexpr (subscales_are_nibbles(f)) {
          const I32 both = widen(load<Bytes>(span));
          d *= to_f32(both & 15);
          m *= to_f32((both >> 4) & 15);
        } else if constexpr (f.scales == Scales::kFloats) {
          d = half_ue4m3(widen(load<Bytes>(span)));
        } else if constexpr (has_subscales(f)) {
          d *= to_f32(load<Bytes>(span));
          if constexpr (f.mins) m *= to_f32(load<Bytes>(span + kTileRows));
        }
        span += span_bytes(f);
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) {
          sum[t] = fma(to_f32(dot[t]) * d, splat(load<float>(panel + 32 * M + 4 * t)), sum[t]);
          if (f.mins) sum[t] = fma(m, splat(load<float>(extra + 4 * t)), sum[t]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) sums[t] = sum[t];
}

}  // namespace luce::LUCE_ISA
