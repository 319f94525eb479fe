// expert_tile.h: 16 rows of a quantised weight, as they lie in the file, times a few tokens of Q8_A.
//
// Experts are not packed: they would have to be read to be packed, and most are not needed. So a piece of a tile, 256
// values of each row, is read into the common form of blocks (blocks.h) and turned until a lane is a row, all in the
// first-level cache; then it meets all tokens of its expert. The sums are those of matmul_packed.h, in the same order:
// a row has the same bits whether its weight is packed or not.
#pragma once

#include <algorithm>

#include "columns.h"
#include "matmul_packed.h"

namespace luce::LUCE_ISA {

constexpr int kPiece = 256;  // values of k
constexpr int kPieceSpans = kPiece / 16;

struct alignas(64) TilePiece {
  uint8_t codes[kPiece / 4][kTileRows][4];  // as dot16 takes them
  float scales[kPieceSpans][kTileRows];
  float mins[kPieceSpans][kTileRows];
};

// What a piece is turned from: each row's own.
struct alignas(64) RowPieces {
  uint8_t codes[kTileRows][kPiece];
  float scales[kTileRows][kPieceSpans];
  float mins[kTileRows][kPieceSpans];
};

// Words of 16 rows to columns of 16 words: n columns, a multiple of 4.
template <class Change>
LUCE_INLINE void turn(const void *rows, int64_t stride, int n, void *columns, Change change) {
  for (int first = 0; first < kTileRows; first += kLanes) {
    for (int c = 0; c < n; c += 4) {
      I32 four[4];
      load_columns(static_cast<const char *>(rows) + first * stride + 4 * c, stride, four);
      for (int i = 0; i < 4; ++i) {
        store(static_cast<char *>(columns) + (c + i) * 4 * kTileRows + 4 * first, change(four[i]));
      }
    }
  }
}

// One row's n values at `in`: codes as in the block, scales and mins as floats.
template <class BlockOf>
LUCE_INLINE void read_row(const uint8_t *in, int n, uint8_t *codes, float *scales, float *mins) {
  constexpr Format f = BlockOf::format;
  constexpr int n_spans = f.values / f.span;
  for (; n > 0; n -= f.values, in += f.bytes, codes += f.values, scales += n_spans, mins += n_spans) {
    Block block;
    BlockOf::read(in, block);
    std::memcpy(codes, block.code, f.values);
    for (int s = 0; s < n_spans; ++s) {
      scales[s] = span_scale<f>(block, s);
      if (f.mins) mins[s] = span_min<f>(block, s);
    }
  }
}

// n values, at most kPiece and whole blocks, of n_rows rows, `stride` bytes apart; rows that are missing are copies of
// the first.
template <class BlockOf>
void read_piece(const uint8_t *in, int64_t stride, int64_t n_rows, int n, RowPieces &rows, TilePiece &piece) {
  constexpr Format f = BlockOf::format;
  for (int r = 0; r < kTileRows; ++r) {
    read_row<BlockOf>(in + (r < n_rows ? r * stride : 0), n, rows.codes[r], rows.scales[r], rows.mins[r]);
  }
  turn(rows.codes, kPiece, n / 4, piece.codes,
       [](I32 four) { return reinterpret_cast<I32>(levels_of<f>(reinterpret_cast<U8>(four))); });
  const auto same = [](I32 four) { return four; };
  const int n_spans = (n / f.span + 3) / 4 * 4;  // those beyond n are turned and not used
  turn(rows.scales, sizeof rows.scales[0], n_spans, piece.scales, same);
  if (f.mins) turn(rows.mins, sizeof rows.mins[0], n_spans, piece.mins, same);
}

// Adds to sums[t], kLanes rows from `lane` on, the piece's n values times token t of the panel (matmul_packed.h).
template <Format f, int M>
LUCE_INLINE void multiply_piece(const TilePiece &piece, int lane, int n, const uint8_t *panel, F32 *sums) {
  F32 sum[M];
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) sum[t] = sums[t];
#pragma GCC unroll 1
  for (int c = 0; c < n / 32; ++c, panel += M * panel_block_bytes(f)) {
    I32 dot[M];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int s = f.span == 16 ? half : 0, span = c * (32 / f.span) + s;
      const uint8_t *extra = panel + (36 + 4 * s) * M;
      U8 w[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) w[j] = load<U8>(piece.codes[8 * c + 4 * half + j][lane]);
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) {
        if (f.span == 16 || half == 0) dot[t] = zero_of(f) != 0 ? splat(load<int32_t>(extra + 4 * t)) : I32{};
        dot[t] = dot16<level_bits(f)>(dot[t], w, panel + 16 * M * half + 4 * t, 4 * M);
      }
      if (f.span == 32 && half == 0) continue;
      const F32 d = load<F32>(piece.scales[span] + lane), m = f.mins ? load<F32>(piece.mins[span] + lane) : F32{};
#pragma GCC unroll 16
      for (int t = 0; t < M; ++t) {
        sum[t] = fma(to_f32(dot[t]) * d, splat(load<float>(panel + 32 * M + 4 * t)), sum[t]);
        if (f.mins) sum[t] = fma(m, splat(load<float>(extra + 4 * t)), sum[t]);
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) sums[t] = sum[t];
}

}  // namespace luce::LUCE_ISA
