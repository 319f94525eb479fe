// cells.h: the cells of a paged cache: where they are and what their bytes mean.
#pragma once

#include <cmath>

#include "kernel.h"
#include "simd.h"

namespace luce::LUCE_ISA {

inline int64_t cell_bytes(const luce_tensor &pages) {
  const bool in_blocks = pages.type == LUCE_Q8_0 || pages.type == LUCE_Q4_0;
  return pages.ne[0] / (in_blocks ? 32 : 1) * pages.nb[0];
}

inline char *cell(const luce_tensor &pages, int64_t c, int64_t head, int64_t page) {
  return static_cast<char *>(pages.data) + c * pages.nb[1] + head * pages.nb[2] + page * pages.nb[3];
}

// 32 values: d = max|x| / 127, q = round-to-even(x / d); d itself is stored as F16.
inline void store_q8_0(const float *x, char *block) {
  F32 most = {};
  for (int k = 0; k < 32; k += kLanes) most = max(abs(load<F32>(x + k)), most);
  const float d = largest(most) / 127, divisor = d > 0 ? d : 1;
  const uint16_t half = f32_to_f16(d);
  std::memcpy(block, &half, sizeof half);
  for (int k = 0; k < 32; k += kLanes) {
    // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits. A NaN becomes -127.
    const F32 bounded = min(max(load<F32>(x + k) / divisor, splat(-127.0f)), splat(127.0f));
    const I32 q = reinterpret_cast<I32>(bounded + 0x1.8p23f);
    store(block + 2 + k, narrow_to_bytes(q));
  }
}

// 32 values: d = x / -8 for the first x of the largest magnitude, stored as F16; code = x / d + 8.5 without its
// fraction, at most 15. As ggml does it, so that what is negative and largest is exact.
inline void store_q4_0(const float *x, char *block) {
  float most = 0;
  for (int k = 0; k < 32; ++k) most = std::fabs(x[k]) > std::fabs(most) ? x[k] : most;
  const float d = most / -8, inverse = d != 0 ? 1 / d : 0;
  const uint16_t half = f32_to_f16(d);
  std::memcpy(block, &half, sizeof half);
  for (int k = 0; k < 32; ++k) {
    const float code = x[k] * inverse + 8.5f;
    const int nibble = code >= 0 ? static_cast<int>(std::fmin(code, 15.0f)) : 0;  // a NaN becomes 0
    if (k < 16) {
      block[2 + k] = nibble;
    } else {
      block[2 + k - 16] |= nibble << 4;
    }
  }
}

// Loads kLanes values of a cell from value k on. For the last ones, fewer than kLanes: load_first().
template <int kType>
struct CellReader;

template <>
struct CellReader<LUCE_F32> {
  static LUCE_INLINE F32 load(const char *cell, int64_t k) { return LUCE_ISA::load<F32>(cell + 4 * k); }
  static LUCE_INLINE F32 load_first(const char *cell, int64_t k, int64_t n) {
    return LUCE_ISA::load_first<F32>(cell + 4 * k, n);
  }
};

template <>
struct CellReader<LUCE_F16> {
  static LUCE_INLINE F32 load(const char *cell, int64_t k) { return f16_to_f32(LUCE_ISA::load<Half>(cell + 2 * k)); }
  static LUCE_INLINE F32 load_first(const char *cell, int64_t k, int64_t n) {
    return f16_to_f32(LUCE_ISA::load_first<Half>(cell + 2 * k, n));
  }
};

template <>
struct CellReader<LUCE_BF16> {
  static LUCE_INLINE F32 load(const char *cell, int64_t k) { return bf16_to_f32(LUCE_ISA::load<Half>(cell + 2 * k)); }
  static LUCE_INLINE F32 load_first(const char *cell, int64_t k, int64_t n) {
    return bf16_to_f32(LUCE_ISA::load_first<Half>(cell + 2 * k, n));
  }
};

template <>
struct CellReader<LUCE_Q8_0> {
  static LUCE_INLINE F32 load(const char *cell, int64_t k) {
    const char *block = cell + k / 32 * kQ8Bytes;
    uint16_t d;
    std::memcpy(&d, block, sizeof d);
    return to_f32(LUCE_ISA::load<Bytes>(block + 2 + k % 32)) * f16_to_f32(d);
  }
  static LUCE_INLINE F32 load_first(const char *cell, int64_t k, int64_t) { return load(cell, k); }
};

template <>
struct CellReader<LUCE_Q4_0> {
  static LUCE_INLINE F32 load(const char *cell, int64_t k) {
    const char *block = cell + k / 32 * kQ4Bytes;
    uint16_t d;
    std::memcpy(&d, block, sizeof d);
    const I32 codes = widen(LUCE_ISA::load<Bytes>(block + 2 + k % 16)) >> (k % 32 < 16 ? 0 : 4) & 15;
    return to_f32(codes - 8) * f16_to_f32(d);
  }
  static LUCE_INLINE F32 load_first(const char *cell, int64_t k, int64_t) { return load(cell, k); }
};

}  // namespace luce::LUCE_ISA
