// level_blocks.h: the blocks whose codes stand for values of a table: IQ2 to IQ4, MXFP4, NVFP4.
//
// IQ2 and IQ3 name points of a lattice, 8 or 4 values at once, and signs. A value has one of 3 or 8 magnitudes: read
// here, its code is the place of its magnitude with the sign as the bit above.
#pragma once

#include "codebooks.h"
#include "format.h"

namespace luce {

inline constexpr Levels kIq2Levels = {{51, 68, 86, 43, 35, 18, 0, 43}};  // 43 + 8, 25, 43, then 43 - those
inline constexpr Levels kIq3XxsLevels = {{66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0}};
inline constexpr Levels kIq3SLevels = {{16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0}};
inline constexpr Levels kIq4Levels = {{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}};
inline constexpr Levels kFp4Levels = {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};

namespace detail {

inline uint32_t u32(const uint8_t *p) {
  return u16(p) | uint32_t{u16(p + 2)} << 16;
}

// The n values of a lattice point, `bits` bits each, with their signs: a value whose bit is set is negative.
inline void point(uint16_t point, int n, int bits, int sign_bit, uint8_t signs, uint8_t *code) {
  for (int i = 0; i < n; ++i) {
    code[i] = (point >> bits * i & ((1 << sign_bit) - 1)) | (signs >> i & 1) << sign_bit;
  }
}
inline void point8(uint16_t point, uint8_t signs, uint8_t *code) {
  detail::point(point, 8, 2, 2, signs, code);
}
inline void point4(uint16_t point, uint8_t signs, uint8_t *code) {
  detail::point(point, 4, 4, 3, signs, code);
}

// Seven signs and an eighth that makes the number of minus signs even.
inline uint8_t even_signs(uint32_t seven) {
  return seven | __builtin_parity(seven) << 7;
}

// A scale of four bits, s + 1/2, doubled.
inline int8_t odd(int s) {
  return 2 * s + 1;
}
inline void odd_nibbles(const uint8_t *p, int n, int8_t *scale) {
  for (int i = 0; i < n; ++i) {
    scale[2 * i] = odd(p[i] & 15);
    scale[2 * i + 1] = odd(p[i] >> 4);
  }
}

}  // namespace detail

template <>
struct BlockOf<LUCE_IQ2_XXS> {
  static constexpr Format format = {256, 66, 3, 43, 32, false, Scales::kSpans, kIq2Levels, 0.125f};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    for (int s = 0; s < 8; ++s) {
      const uint8_t *span = p + 2 + 8 * s;
      const uint32_t signs = detail::u32(span + 4);
      for (int i = 0; i < 4; ++i) {
        detail::point8(kIq2Xxs[span[i]], detail::even_signs(signs >> 7 * i & 127), block.code + 32 * s + 8 * i);
      }
      block.scale[s] = detail::odd(signs >> 28);
    }
  }
};

template <>
struct BlockOf<LUCE_IQ2_XS> {
  static constexpr Format format = {256, 74, 3, 43, 16, false, Scales::kSpans, kIq2Levels, 0.125f};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    for (int i = 0; i < 32; ++i) {
      const uint16_t q = detail::u16(p + 2 + 2 * i);
      detail::point8(kIq2Xs[q & 511], detail::even_signs(q >> 9), block.code + 8 * i);
    }
    detail::odd_nibbles(p + 66, 8, block.scale);
  }
};

template <>
struct BlockOf<LUCE_IQ2_S> {
  static constexpr Format format = {256, 82, 3, 43, 16, false, Scales::kSpans, kIq2Levels, 0.125f};
  static void read(const uint8_t *p, Block &block) {
    const uint8_t *low = p + 2, *signs = p + 34, *high = p + 66;
    block.d = detail::u16(p);
    for (int i = 0; i < 32; ++i) {
      const int q = low[i] | (high[i / 4] >> i % 4 * 2 & 3) << 8;
      detail::point8(kIq2S[q], signs[i], block.code + 8 * i);
    }
    detail::odd_nibbles(p + 74, 8, block.scale);
  }
};

template <>
struct BlockOf<LUCE_IQ3_XXS> {
  static constexpr Format format = {256, 98, 4, 62, 32, false, Scales::kSpans, kIq3XxsLevels, 0.25f};
  static void read(const uint8_t *p, Block &block) {
    const uint8_t *q = p + 2;
    block.d = detail::u16(p);
    for (int s = 0; s < 8; ++s) {
      const uint32_t seven = detail::u32(p + 66 + 4 * s);
      for (int i = 0; i < 8; ++i) {
        const uint8_t signs = detail::even_signs(seven >> i / 2 * 7 & 127) >> i % 2 * 4;
        detail::point4(kIq3Xxs[q[8 * s + i]], signs, block.code + 32 * s + 4 * i);
      }
      block.scale[s] = detail::odd(seven >> 28);
    }
  }
};

template <>
struct BlockOf<LUCE_IQ3_S> {
  static constexpr Format format = {256, 110, 4, 15, 32, false, Scales::kSpans, kIq3SLevels};
  static void read(const uint8_t *p, Block &block) {
    const uint8_t *low = p + 2, *high = p + 66, *signs = p + 74;
    block.d = detail::u16(p);
    for (int i = 0; i < 64; ++i) {
      const int q = low[i] | (high[i / 8] >> i % 8 & 1) << 8;
      detail::point4(kIq3S[q], signs[i / 2] >> i % 2 * 4, block.code + 4 * i);
    }
    detail::odd_nibbles(p + 106, 4, block.scale);
  }
};

template <>
struct BlockOf<LUCE_IQ4_NL> {
  static constexpr Format format = {32, 18, 4, 128, 32, false, Scales::kBlock, kIq4Levels};
  static void read(const uint8_t *p, Block &block) {
    block.d = detail::u16(p);
    detail::nibbles(p + 2, 16, block.code);
  }
};

template <>
struct BlockOf<LUCE_IQ4_XS> {
  static constexpr Format format = {256, 136, 4, 128, 32, false, Scales::kSpans, kIq4Levels};
  static void read(const uint8_t *p, Block &block) {
    const uint16_t high = detail::u16(p + 2);
    block.d = detail::u16(p);
    for (int s = 0; s < 8; ++s) {
      block.scale[s] = ((p[4 + s / 2] >> s % 2 * 4 & 15) | (high >> 2 * s & 3) << 4) - 32;
      detail::nibbles(p + 8 + 16 * s, 16, block.code + 32 * s);
    }
  }
};

template <>
struct BlockOf<LUCE_MXFP4> {
  static constexpr Format format = {32, 17, 4, 12, 32, false, Scales::kPowers, kFp4Levels};
  static void read(const uint8_t *p, Block &block) {
    block.d = p[0];
    detail::nibbles(p + 1, 16, block.code);
  }
};

template <>
struct BlockOf<LUCE_NVFP4> {
  static constexpr Format format = {64, 36, 4, 12, 16, false, Scales::kFloats, kFp4Levels};
  static void read(const uint8_t *p, Block &block) {
    for (int s = 0; s < 4; ++s) {
      block.scale[s] = p[s] == 0x7F ? 0 : p[s] & 0x7F;  // what would be its NaN counts as 0
      detail::nibbles(p + 4 + 8 * s, 8, block.code + 16 * s);
    }
  }
};

}  // namespace luce
