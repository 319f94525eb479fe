// pack.h: how luce_pack lays out a quantised weight [K, N] for luce_matmul.
//
// Tiles of 16 rows follow each other; the last one is padded with rows of zeros. In a tile one lane is one row, so that
// the kernel needs no sum across lanes and 1, 2 or 4 instruction-set vectors make up a tile. A tile is
//   codes:  for each 32 values of k, in planes of 64-byte vectors. A vector belongs to group g = k / 4 % 8 and byte
//           4 * row + k % 4 of it is one code:
//             8 bits  8 vectors, one for each group
//             4 bits  4 vectors: vector j holds group j in its low and group j + 4 in its high nibbles
//             2 bits  2 vectors: vector j holds group 4j + f in the field of bits 2f, 2f + 1
//             1 bit   1 vector: group g in bit g
//           5 bits are 4 + 1, 6 are 4 + 2, 3 are 2 + 1: the low plane first.
//   scales: for each block of the format, 16 F16 d; with mins 16 F16 m; then, where spans have scales of their own, for
//           each span 16 bytes of scale and 16 of min (Q2_K: one byte, scale in its low nibble). MXFP4 has 16 bytes of
//           d and NVFP4 no d.
// Tiles begin at multiples of 64 bytes. No value is rounded. The size is the file's, within 4 %, but for IQ2 and IQ3:
// the points of their lattices are spelled out, as 3 and 4 bits of a value. Looking points up while multiplying would
// take several times the instructions, and so more time than to read 1.61 (IQ2_XXS), 1.54 (IQ2_XS), 1.39 (IQ2_S), 1.41
// (IQ3_XXS) or 1.25 (IQ3_S) times the bytes.
#pragma once

#include "blocks.h"

namespace luce {

constexpr int kTileRows = 16;

constexpr bool has_subscales(const Format &f) {
  return f.scales == Scales::kSpans || f.scales == Scales::kFloats;
}
constexpr bool subscales_are_nibbles(const Format &f) {
  return f.bits == 2 && f.mins;
}

// Bytes of the codes of 32 values of k, of their low plane, of one span's scale and min, of one block's scales.
constexpr int code_bytes(const Format &f) {
  return 64 * f.bits;
}
constexpr int low_bits(const Format &f) {
  return f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2;
}
constexpr int span_bytes(const Format &f) {
  if (!has_subscales(f)) return 0;
  return kTileRows * (f.mins && !subscales_are_nibbles(f) ? 2 : 1);
}
// From the beginning of a block's scales to those of its spans.
constexpr int block_d_bytes(const Format &f) {
  switch (f.scales) {
    case Scales::kPowers:
      return kTileRows;
    case Scales::kFloats:
      return 0;
    default:
      return 2 * kTileRows * (f.mins ? 2 : 1);
  }
}
constexpr int block_scale_bytes(const Format &f) {
  return block_d_bytes(f) + f.values / f.span * span_bytes(f);
}

// From the beginning of a tile to its scales, and to the next tile.
constexpr int64_t tile_code_bytes(const Format &f, int64_t K) {
  return K / 32 * code_bytes(f);
}
constexpr int64_t tile_bytes(const Format &f, int64_t K) {
  return (tile_code_bytes(f, K) + K / f.values * block_scale_bytes(f) + 63) / 64 * 64;
}

}  // namespace luce
