// plain_blocks.h: the blocks whose codes are numbers: Q4_0 to Q8_0, Q2_K to Q6_K, TQ2_0.
#pragma once

#include "format.h"

namespace luce {

namespace detail {

// Bit i of the 32 at p is bit 4 of code i.
inline void fifth_bits(const uint8_t *p, uint8_t *code) {
  for (int i = 0; i < 32; ++i) code[i] |= (p[i / 8] >> i % 8 & 1) << 4;
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
  static constexpr Format format = {256, 84, 2, 0, 16, true, Scales::kSpans};
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
  static constexpr Format format = {256, 110, 3, 4, 16, false, Scales::kSpans};
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
  static constexpr Format format = {256, 144, 4, 0, 32, true, Scales::kSpans};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    block.m = detail::negated(detail::u16(p + 2));
    detail::six_bits(p + 4, block);
    for (int g = 0; g < 4; ++g) detail::nibbles(p + 16 + 32 * g, 32, block.code + 64 * g);
  }
};

template <>
struct BlockOf<LUCE_Q5_K> {
  static constexpr Format format = {256, 176, 5, 0, 32, true, Scales::kSpans};
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
  static constexpr Format format = {256, 210, 6, 32, 16, false, Scales::kSpans};
  static void read(const uint8_t *p, Block &block) {
    for (int h = 0; h < 2; ++h) detail::nibbles(p + 64 * h, 64, block.code + 128 * h);
    for (int i = 0; i < 256; ++i) {
      block.code[i] |= (p[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
    }
    std::memcpy(block.scale, p + 192, 16);
    block.d = detail::u16(p + 208);
  }
};

template <>
struct BlockOf<LUCE_TQ2_0> {
  static constexpr Format format = {256, 66, 2, 1, 32, false};
  static void read(const uint8_t *p, Block &block) {
    detail::pairs(p, block.code);
    block.d = detail::u16(p + 64);
  }
};

}  // namespace luce
