// quant.cuh: GGUF's quantised blocks, seen value by value, in one common form:
//   value[i] = f16(d) * scale(i / span) * (code(i) - zero) + f16(m) * min(i / span)
// The product of d or m with a scale, a min or a code is exact in float. For what reads a block once: embed and pack.
#pragma once

#include "kernel.h"

namespace luce {

// What all blocks of a type have in common. `mins`: it has m and min; otherwise m is 0.
struct Format {
  int values;  // in a block
  int bytes;   // of a block
  int bits;    // of a code
  int zero;    // the code of value 0
  int span;    // values under one scale
  bool mins;
};

LUCE_DEVICE float half_at(const uint8_t *p) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

// Formats without sub-blocks: d, then m where there is one, then fifth bits where there are some, then nibbles: value i
// is the low one of byte i, or the high one of byte i - 16.
template <int kBytes, int kBits, int kZero, bool kMins>
struct SmallBlock {
  static constexpr Format format = {32, kBytes, kBits, kZero, 32, kMins};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p); }
  LUCE_DEVICE static float m(const uint8_t *p) { return kMins ? half_at(p + 2) : 0.0f; }
  LUCE_DEVICE static int scale(const uint8_t *, int) { return 1; }
  LUCE_DEVICE static int min(const uint8_t *, int) { return 1; }
  LUCE_DEVICE static int code(const uint8_t *p, int i) {
    const uint8_t *bits = p + (kMins ? 4 : 2), *nibbles = bits + (kBits == 5 ? 4 : 0);
    const int low = nibbles[i % 16] >> (i / 16 * 4) & 15;
    return kBits == 5 ? low | (bits[i / 8] >> i % 8 & 1) << 4 : low;
  }
};

template <int type>
struct BlockOf;
template <>
struct BlockOf<LUCE_Q4_0> : SmallBlock<18, 4, 8, false> {};
template <>
struct BlockOf<LUCE_Q4_1> : SmallBlock<20, 4, 0, true> {};
template <>
struct BlockOf<LUCE_Q5_0> : SmallBlock<22, 5, 16, false> {};
template <>
struct BlockOf<LUCE_Q5_1> : SmallBlock<24, 5, 0, true> {};

template <>
struct BlockOf<LUCE_Q8_0> {
  static constexpr Format format = {32, 34, 8, 0, 32, false};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p); }
  LUCE_DEVICE static float m(const uint8_t *) { return 0.0f; }
  LUCE_DEVICE static int scale(const uint8_t *, int) { return 1; }
  LUCE_DEVICE static int min(const uint8_t *, int) { return 1; }
  LUCE_DEVICE static int code(const uint8_t *p, int i) { return static_cast<int8_t>(p[2 + i]); }
};

// Two-bit field of value i of 256: in each half of 128, the bytes' lowest fields come first.
LUCE_DEVICE int pair_of(const uint8_t *p, int i) {
  return p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

template <>
struct BlockOf<LUCE_Q2_K> {
  static constexpr Format format = {256, 84, 2, 0, 16, true};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p + 80); }
  LUCE_DEVICE static float m(const uint8_t *p) { return -half_at(p + 82); }
  LUCE_DEVICE static int scale(const uint8_t *p, int s) { return p[s] & 15; }
  LUCE_DEVICE static int min(const uint8_t *p, int s) { return p[s] >> 4; }
  LUCE_DEVICE static int code(const uint8_t *p, int i) { return pair_of(p + 16, i); }
};

template <>
struct BlockOf<LUCE_Q3_K> {
  static constexpr Format format = {256, 110, 3, 4, 16, false};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p + 108); }
  LUCE_DEVICE static float m(const uint8_t *) { return 0.0f; }
  LUCE_DEVICE static int scale(const uint8_t *p, int s) {
    const uint8_t *q = p + 96;
    const int low = s < 8 ? q[s] & 15 : q[s - 8] >> 4;
    return (low | (q[8 + s % 4] >> s / 4 * 2 & 3) << 4) - 32;
  }
  LUCE_DEVICE static int min(const uint8_t *, int) { return 0; }
  LUCE_DEVICE static int code(const uint8_t *p, int i) { return pair_of(p + 32, i) | (p[i % 32] >> i / 32 & 1) << 2; }
};

// Eight scales and eight minima of six bits in 12 bytes; d and the minima's factor, which is subtracted, before them.
template <int kBytes, int kBits>
struct SixBitBlock {
  static constexpr Format format = {256, kBytes, kBits, 0, 32, true};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p); }
  LUCE_DEVICE static float m(const uint8_t *p) { return -half_at(p + 2); }
  LUCE_DEVICE static int scale(const uint8_t *p, int s) {
    const uint8_t *q = p + 4;
    return s < 4 ? q[s] & 63 : (q[s + 4] & 15) | (q[s - 4] >> 6) << 4;
  }
  LUCE_DEVICE static int min(const uint8_t *p, int s) {
    const uint8_t *q = p + 4;
    return s < 4 ? q[s + 4] & 63 : q[s + 4] >> 4 | (q[s] >> 6) << 4;
  }
  LUCE_DEVICE static int code(const uint8_t *p, int i) {
    const uint8_t *nibbles = p + 16 + (kBits == 5 ? 32 : 0);
    const int low = nibbles[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
    return kBits == 5 ? low | (p[16 + i % 32] >> i / 32 & 1) << 4 : low;
  }
};

template <>
struct BlockOf<LUCE_Q4_K> : SixBitBlock<144, 4> {};
template <>
struct BlockOf<LUCE_Q5_K> : SixBitBlock<176, 5> {};

template <>
struct BlockOf<LUCE_Q6_K> {
  static constexpr Format format = {256, 210, 6, 32, 16, false};
  LUCE_DEVICE static float d(const uint8_t *p) { return half_at(p + 208); }
  LUCE_DEVICE static float m(const uint8_t *) { return 0.0f; }
  LUCE_DEVICE static int scale(const uint8_t *p, int s) { return static_cast<int8_t>(p[192 + s]); }
  LUCE_DEVICE static int min(const uint8_t *, int) { return 0; }
  LUCE_DEVICE static int code(const uint8_t *p, int i) {
    const int low = p[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    return low | pair_of(p + 128, i) << 4;
  }
};

#define LUCE_QUANTISED(X) \
  X(q4_0, LUCE_Q4_0)      \
  X(q4_1, LUCE_Q4_1)      \
  X(q5_0, LUCE_Q5_0)      \
  X(q5_1, LUCE_Q5_1)      \
  X(q8_0, LUCE_Q8_0)      \
  X(q2_k, LUCE_Q2_K)      \
  X(q3_k, LUCE_Q3_K)      \
  X(q4_k, LUCE_Q4_K)      \
  X(q5_k, LUCE_Q5_K)      \
  X(q6_k, LUCE_Q6_K)

// Types that matrices of one file have side by side: most of them the first, some the second.
#define LUCE_PAIRS(X)                 \
  X(q5_0, LUCE_Q5_0, q8_0, LUCE_Q8_0) \
  X(q4_k, LUCE_Q4_K, q6_k, LUCE_Q6_K) \
  X(q5_k, LUCE_Q5_K, q6_k, LUCE_Q6_K)

// Values in a block of a quantised type; 0: it is none.
inline int block_values(int32_t type) {
  switch (type) {
#define LUCE_CASE(name, type) \
  case type:                  \
    return BlockOf<type>::format.values;
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return 0;
  }
}

// Value k of a row of any weight type.
template <int type>
LUCE_DEVICE float value_of(const uint8_t *row, int64_t k) {
  if constexpr (type == LUCE_F32) {
    return reinterpret_cast<const float *>(row)[k];
  } else if constexpr (type == LUCE_F16) {
    return __half2float(reinterpret_cast<const __half *>(row)[k]);
  } else if constexpr (type == LUCE_BF16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(row)[k]);
  } else {
    using Block = BlockOf<type>;
    constexpr Format f = Block::format;
    const uint8_t *p = row + k / f.values * f.bytes;
    const int i = static_cast<int>(k % f.values), s = i / f.span;
    const float value =
        Block::d(p) * static_cast<float>(Block::scale(p, s)) * static_cast<float>(Block::code(p, i) - f.zero);
    return f.mins ? value + Block::m(p) * static_cast<float>(Block::min(p, s)) : value;
  }
}

}  // namespace luce
