// blocks.h: GGUF's quantised blocks, each read into one common form:
//   value[i] = f16(d) * scale[i / span] * (code[i] - zero) + f16(m) * min[i / span]
// The product of d or m with a scale or min is exact in float, so nothing is lost by keeping them apart.
#pragma once

#include <cstdint>
#include <cstring>

#include "luce.h"

namespace luce {

// One block in the common form. Formats without sub-blocks have scale and min 1; the K formats subtract their minimum:
// their m is stored negated.
struct Block {
  uint16_t d = 0, m = 0;  // F16
  int8_t scale[16] = {1};
  int8_t min[16] = {1};
  uint8_t code[256] = {};
};

// What all blocks of a type have in common. `mins`: it has m and min; otherwise m is 0.
struct Format {
  int values;  // in a block
  int bytes;   // of a block
  int bits;    // of a code
  int zero;    // the code of value 0
  int span;    // values under one scale
  bool mins;
};

namespace detail {

inline uint16_t u16(const uint8_t *p) {
  return static_cast<uint16_t>(p[0] | p[1] << 8);
}

// n bytes hold 2n codes: n low nibbles, then n high ones.
inline void nibbles(const uint8_t *p, int n, uint8_t *code) {
  for (int i = 0; i < n; ++i) {
    code[i] = p[i] & 15;
    code[i + n] = p[i] >> 4;
  }
}

// Bit i of the 32 at p is bit 4 of code i.
inline void fifth_bits(const uint8_t *p, uint8_t *code) {
  for (int i = 0; i < 32; ++i) code[i] |= (p[i / 8] >> i % 8 & 1) << 4;
}

// 64 bytes hold 256 codes of two bits: in each half of 128, the bytes' lowest fields come first.
inline void pairs(const uint8_t *p, uint8_t *code) {
  for (int i = 0; i < 256; ++i) code[i] = p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// Eight scales and eight minima of six bits in 12 bytes.
inline void six_bits(const uint8_t *p, Block &block) {
  for (int i = 0; i < 4; ++i) {
    block.scale[i] = p[i] & 63;
    block.min[i] = p[i + 4] & 63;
    block.scale[i + 4] = (p[i + 8] & 15) | (p[i] >> 6) << 4;
    block.min[i + 4] = p[i + 8] >> 4 | (p[i + 4] >> 6) << 4;
  }
}

inline uint16_t negated(uint16_t f16) {
  return f16 ^ 0x8000;
}

}  // namespace detail

// Of each type: its Format, and read() of one block.
template <int type>
struct BlockOf;

template <>
struct BlockOf<LUCE_Q4_0> {
  static constexpr Format format = {32, 18, 4, 8, 32, false};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    detail::nibbles(p + 2, 16, block.code);
  }
};

template <>
struct BlockOf<LUCE_Q4_1> {
  static constexpr Format format = {32, 20, 4, 0, 32, true};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    block.m = detail::u16(p + 2);
    detail::nibbles(p + 4, 16, block.code);
  }
};

template <>
struct BlockOf<LUCE_Q5_0> {
  static constexpr Format format = {32, 22, 5, 16, 32, false};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    detail::nibbles(p + 6, 16, block.code);
    detail::fifth_bits(p + 2, block.code);
  }
};

template <>
struct BlockOf<LUCE_Q5_1> {
  static constexpr Format format = {32, 24, 5, 0, 32, true};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    block.m = detail::u16(p + 2);
    detail::nibbles(p + 8, 16, block.code);
    detail::fifth_bits(p + 4, block.code);
  }
};

template <>
struct BlockOf<LUCE_Q8_0> {
  static constexpr Format format = {32, 34, 8, 128, 32, false};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    for (int i = 0; i < 32; ++i) block.code[i] = p[2 + i] ^ 0x80;
  }
};

template <>
struct BlockOf<LUCE_Q2_K> {
  static constexpr Format format = {256, 84, 2, 0, 16, true};
  static void read(const uint8_t *p, Block &block) {
    for (int i = 0; i < 16; ++i) {
      block.scale[i] = p[i] & 15;
      block.min[i] = p[i] >> 4;
    }
    detail::pairs(p + 16, block.code);
    block.d = detail::u16(p + 80);
    block.m = detail::negated(detail::u16(p + 82));
  }
};

template <>
struct BlockOf<LUCE_Q3_K> {
  static constexpr Format format = {256, 110, 3, 4, 16, false};
  static void read(const uint8_t *p, Block &block) {
    detail::pairs(p + 32, block.code);
    for (int i = 0; i < 256; ++i) block.code[i] |= (p[i % 32] >> i / 32 & 1) << 2;
    const uint8_t *s = p + 96;
    for (int i = 0; i < 16; ++i) {
      const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
      block.scale[i] = static_cast<int8_t>((low | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
    }
    block.d = detail::u16(p + 108);
  }
};

template <>
struct BlockOf<LUCE_Q4_K> {
  static constexpr Format format = {256, 144, 4, 0, 32, true};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    block.m = detail::negated(detail::u16(p + 2));
    detail::six_bits(p + 4, block);
    for (int g = 0; g < 4; ++g) detail::nibbles(p + 16 + 32 * g, 32, block.code + 64 * g);
  }
};

template <>
struct BlockOf<LUCE_Q5_K> {
  static constexpr Format format = {256, 176, 5, 0, 32, true};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    block.m = detail::negated(detail::u16(p + 2));
    detail::six_bits(p + 4, block);
    for (int g = 0; g < 4; ++g) detail::nibbles(p + 48 + 32 * g, 32, block.code + 64 * g);
    for (int i = 0; i < 256; ++i) block.code[i] |= (p[16 + i % 32] >> i / 32 & 1) << 4;
  }
};

template <>
struct BlockOf<LUCE_Q6_K> {
  static constexpr Format format = {256, 210, 6, 32, 16, false};
  static void read(const uint8_t *p, Block &block) {
    for (int h = 0; h < 2; ++h) detail::nibbles(p + 64 * h, 64, block.code + 128 * h);
    for (int i = 0; i < 256; ++i) {
      block.code[i] |= (p[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
    }
    std::memcpy(block.scale, p + 192, 16);
    block.d = detail::u16(p + 208);
  }
};

// visit(BlockOf<type>{}) for a quantised type; false for any other.
template <class Visit>
bool with_block(int32_t type, Visit visit) {
  switch (type) {
#define LUCE_CASE(name)     \
  case name:                \
    visit(BlockOf<name>{}); \
    return true;
    LUCE_CASE(LUCE_Q4_0)
    LUCE_CASE(LUCE_Q4_1)
    LUCE_CASE(LUCE_Q5_0)
    LUCE_CASE(LUCE_Q5_1)
    LUCE_CASE(LUCE_Q8_0)
    LUCE_CASE(LUCE_Q2_K)
    LUCE_CASE(LUCE_Q3_K)
    LUCE_CASE(LUCE_Q4_K)
    LUCE_CASE(LUCE_Q5_K)
    LUCE_CASE(LUCE_Q6_K)
#undef LUCE_CASE
    default:
      return false;
  }
}

}  // namespace luce
