// format.h: the common form into which each of GGUF's quantised blocks is read:
//   value[i] = scale of span i / span * (level of code[i] - zero) + f16(m) * min[i / span]
// A product of d or m with a scale or min is exact in float, so nothing is lost by keeping them apart.
#pragma once

#include <cstdint>
#include <cstring>

#include "luce.h"

namespace luce {

// What the scale of a span is.
enum class Scales {
  kBlock,   // f16(d)
  kSpans,   // f16(d) * scale[span] * unit
  kPowers,  // 2^(d - 128), d one byte: half an E8M0
  kFloats,  // ue4m3(scale[span]) / 2: three bits of fraction, four of exponent, no sign
};

// What each code of four bits or fewer stands for, plus `zero`. Not `given`: a code is its own level.
struct Levels {
  uint8_t of[16];
  bool given = true;
};

// What all blocks of a type have in common. `mins`: it has m and, with kSpans, min; otherwise m is 0.
struct Format {
  int values;  // in a block
  int bytes;   // of a block
  int bits;    // of a code
  int zero;    // the level of value 0
  int span;    // values under one scale, 16 or 32
  bool mins;
  Scales scales = Scales::kBlock;
  Levels levels = {{}, false};
  float unit = 1;  // a power of two
};

// One block in the common form. The K formats subtract their minimum: their m is stored negated.
struct Block {
  uint16_t d = 0, m = 0;
  int8_t scale[16];
  int8_t min[16];
  uint8_t code[256] = {};
};

// Bits that the levels need.
constexpr int level_bits(const Format &f) {
  if (!f.levels.given) return f.bits;
  int most = 0, bits = 0;
  for (int level : f.levels.of) most = level > most ? level : most;
  while (most >> bits) ++bits;
  return bits;
}

constexpr int level(const Format &f, uint8_t code) {
  return f.levels.given ? f.levels.of[code] : code;
}

// Of each type: its Format, and read() of one block.
template <int type>
struct BlockOf;

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

// 64 bytes hold 256 codes of two bits: in each half of 128, the bytes' lowest fields come first.
inline void pairs(const uint8_t *p, uint8_t *code) {
  for (int i = 0; i < 256; ++i) code[i] = p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

}  // namespace detail

}  // namespace luce
