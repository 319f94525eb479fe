// pack.cuh: how luce_pack lays out a quantised weight [K, N] for luce_matmul.
//
// Tiles of 16 rows follow each other; the last one is padded with zeros. A tile is a row of *units* of 64 values of k
// (the K formats: 256), the last one padded with zeros. A unit is what a warp reads at once; each lane finds in it what
// a matrix instruction wants from that lane (vendor.h), so nothing passes between lanes. With g = lane / 4, t = lane %
// 4, each 32 values of k are four registers of four codes: register f is row g + 8 (f % 2), codes place(f / 2, t,
// 0..3).
//   codes:  the low bits (8, 4 or 2), then those above them (2 or 1), in words of 32 bits by lane: chunks of four words
//           for each of the 32 lanes, or single ones where there are no four. Of 32 values a lane has
//             8 bits  four words, the registers
//             4 bits  two words: registers 0 and 2 in the low, 1 and 3 in the high nibbles
//             2 bits  one word: register f in the field of bits 2f, 2f + 1 of each byte
//             1 bit   half a word: register f in bit f of each byte, or f + 4 for the second 32 values
//   scales: 64 values: for each row the F16 d of both blocks, with mins (d, m) of both.
//           256 values: for each row d, with mins (d, m); then for each row 16 bytes of scales and minima, four for
//           each t: those of blocks t and t + 4 of 32 values. They are the two scales and the two minima; or with two
//           scales to a block those four, 128 added to signed ones, and (Q2_K) the minimum in the high nibble.
// No value is rounded, and the size is the file's within 4 %.
#pragma once

#include "quant.cuh"

namespace luce {

constexpr int kTileRows = 16;
constexpr int kMatmulThreads = 256;  // of a block of luce_matmul, which makes a tile

template <int type>
struct Packing {
  static constexpr Format f = BlockOf<type>::format;
  static constexpr bool is_super = f.values == 256;
  static constexpr int values = is_super ? 256 : 64;
  static constexpr int blocks = values / 32;
  static constexpr int low_bits = f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2, high_bits = f.bits - low_bits;
  static constexpr int low_words = values * low_bits / 64, high_words = values * high_bits / 64;  // of a lane
  static constexpr int d_bytes = (is_super ? 2 : 4) * (f.mins ? 2 : 1);                           // of a row
  static constexpr int sub_bytes = is_super ? 16 : 0;                                             // of a row
  static constexpr int code_bytes = (low_words + high_words) * 4 * kLanes;
  static constexpr int bytes = code_bytes + kTileRows * (d_bytes + sub_bytes);

  static constexpr bool subs_are_nibbles = f.bits == 2;
  static constexpr bool subs_are_signed = is_super && !f.mins;
  static constexpr int n_subs = 256 / f.span;

  static constexpr int64_t tile_bytes(int64_t K) { return (K + values - 1) / values * bytes; }
};

// Which of 32 values of k byte j of a lane's word is, in the first or second pair of registers. With one scale for all
// of them, a lane takes eight that lie side by side.
template <int span>
constexpr LUCE_DEVICE int place(int pair, int t, int j) {
  return span == 32 ? 8 * t + 4 * pair + j : 16 * pair + 4 * t + j;
}

// Which of a row's 16 bytes has scale s, or minimum s, of 256 values.
template <int span>
constexpr LUCE_DEVICE int sub_place(int s, bool is_min) {
  return span == 32 ? s % 4 * 4 + s / 4 + (is_min ? 2 : 0) : s / 2 % 4 * 4 + s / 8 * 2 + s % 2;
}

// Byte offset of a lane's word i among n words of each lane.
constexpr LUCE_DEVICE int word_offset(int n, int i, int lane) {
  return n % 4 == 0 ? i / 4 * 16 * kLanes + lane * 16 + i % 4 * 4 : i * 4 * kLanes + lane * 4;
}

}  // namespace luce
