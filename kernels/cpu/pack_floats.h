// pack_floats.h: how luce_pack lays out an F32, F16 or BF16 weight [K, N] for luce_matmul.
//
// Tiles of 16 rows follow each other, the last one padded with rows of zeros; K is padded to an even number. A row is
// cut into words, and the w-th words of a tile's rows lie side by side. A word is one value, but two in BF16: an
// instruction then widens 16 values where they lie.
#pragma once

#include <algorithm>
#include <cstring>

#include "check.h"
#include "pack.h"

namespace luce {

constexpr int64_t float_bytes(int32_t type) {
  return type == LUCE_F32 ? 4 : 2;
}
// From one tile to the next.
constexpr int64_t float_tile_bytes(int32_t type, int64_t K) {
  return (K + 1) / 2 * 2 * float_bytes(type) * kTileRows;
}

template <class Word>
void pack_words(const luce_tensor &weight, int64_t tile, Word *out) {
  const int64_t row_bytes = weight.ne[0] * float_bytes(weight.type);
  const int64_t n_whole = row_bytes / sizeof(Word), rest_bytes = row_bytes % sizeof(Word);
  std::memset(out, 0, float_tile_bytes(weight.type, weight.ne[0]));
  for (int64_t row = tile * kTileRows; row < std::min((tile + 1) * kTileRows, weight.ne[1]); ++row) {
    const char *in = static_cast<const char *>(weight.data) + row * weight.nb[1];
    Word *to = out + row % kTileRows;
    for (int64_t w = 0; w < n_whole; ++w) std::memcpy(to + w * kTileRows, in + w * sizeof(Word), sizeof(Word));
    if (rest_bytes > 0) std::memcpy(to + n_whole * kTileRows, in + n_whole * sizeof(Word), rest_bytes);
  }
}

inline void pack_float_tile(const luce_tensor &weight, int64_t tile, uint8_t *out) {
  if (weight.type == LUCE_F16) {
    pack_words(weight, tile, reinterpret_cast<uint16_t *>(out));
  } else {
    pack_words(weight, tile, reinterpret_cast<uint32_t *>(out));
  }
}

}  // namespace luce
