// columns.h: rows of words, turned until a lane is a row.
#pragma once

#include "simd.h"

namespace luce::LUCE_ISA {

// Of each four lanes of a and b: the two that `high` says, of both in turn (n = 1), or of a and then of b (n = 2).
template <int n, bool high, int... k>
LUCE_INLINE I32 interleave(I32 a, I32 b, std::integer_sequence<int, k...>) {
  constexpr int from_b = n == 1 ? 1 : 2;
  return __builtin_shufflevector(a, b,
                                 (k / 4 * 4 + 2 * high + (n == 1 ? k % 4 / 2 : k % 2) + (k & from_b ? kLanes : 0))...);
}

// kLanes rows of words, `stride` bytes apart: columns[c] = word c of each row, for the four at `rows`.
LUCE_INLINE void load_columns(const void *rows, int64_t stride, I32 *columns) {
  const char *p = static_cast<const char *>(rows);
  I32 v[4];  // lanes 4l to 4l + 3 of v[j] are row 4l + j
  for (int j = 0; j < 4; ++j, p += stride) {
#if defined(__AVX512F__)
    __m512i quarters = _mm512_castsi128_si512(load<__m128i>(p));
    quarters = _mm512_inserti32x4(quarters, load<__m128i>(p + 4 * stride), 1);
    quarters = _mm512_inserti32x4(quarters, load<__m128i>(p + 8 * stride), 2);
    v[j] = reinterpret_cast<I32>(_mm512_inserti32x4(quarters, load<__m128i>(p + 12 * stride), 3));
#elif defined(__AVX2__)
    const __m256i halves = _mm256_castsi128_si256(load<__m128i>(p));
    v[j] = reinterpret_cast<I32>(_mm256_inserti128_si256(halves, load<__m128i>(p + 4 * stride), 1));
#else
    v[j] = load<I32>(p);
#endif
  }
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>();
  const I32 low01 = interleave<1, false>(v[0], v[1], lanes), high01 = interleave<1, true>(v[0], v[1], lanes);
  const I32 low23 = interleave<1, false>(v[2], v[3], lanes), high23 = interleave<1, true>(v[2], v[3], lanes);
  columns[0] = interleave<2, false>(low01, low23, lanes);
  columns[1] = interleave<2, true>(low01, low23, lanes);
  columns[2] = interleave<2, false>(high01, high23, lanes);
  columns[3] = interleave<2, true>(high01, high23, lanes);
}

}  // namespace luce::LUCE_ISA
