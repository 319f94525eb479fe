// matmul_packed.cu: quantised weights, packed, times rows of Q8_A, for any number of rows.
//
// A block makes a tile of 16 outputs for up to 64 rows: its eight warps take an eighth of K each, and their sums are
// added in order. 32 values of k are one matrix instruction, whose sum is exact; it is scaled and added in float, block
// by block. So an output has the same bits whatever the number of rows, and one row, for which most of the instruction
// is idle, still costs less than its weights take from memory.
//
// This file is compiled once for each type: LUCE_WEIGHT is its name in kernels.def, LUCE_WEIGHT_TYPE its luce_type.
//
// The accumulator of the matrix instruction begins at the bits of 1.5 * 2^23: what comes out is a float already.

#include "check.h"
#include "pack.cuh"

namespace luce {
namespace {

constexpr int kWarps = kMatmulThreads / kLanes;  // and parts of K
constexpr int kMagic = 0x4B400000;               // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0f;

// One unit of a tile, as a lane reads it.
template <int type>
struct Unit {
  using P = Packing<type>;
  static constexpr Format f = P::f;

  uint32_t low[P::low_words], high[P::high_words > 0 ? P::high_words : 1];
  uint32_t d[2][P::d_bytes / 2];  // of rows g and g + 8, the F16 as they lie
  uint32_t sub[2][4];

  LUCE_DEVICE void load(const uint8_t *unit, int lane) {
    load_words<P::low_words>(unit, lane, low);
    if constexpr (P::high_words > 0) load_words<P::high_words>(unit + P::low_words * 4 * kLanes, lane, high);
    const uint8_t *scales = unit + P::code_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4 + 8 * i;
      if constexpr (P::d_bytes == 2) {
        d[i][0] = *reinterpret_cast<const uint16_t *>(scales + 2 * r);
      } else {
#pragma unroll
        for (int j = 0; j < P::d_bytes / 4; ++j) {
          d[i][j] = load_weights(reinterpret_cast<const uint32_t *>(scales + P::d_bytes * r) + j);
        }
      }
      if constexpr (P::is_super) {
        const uint4 s = load_weights(reinterpret_cast<const uint4 *>(scales + kTileRows * P::d_bytes + 16 * r));
        sub[i][0] = s.x, sub[i][1] = s.y, sub[i][2] = s.z, sub[i][3] = s.w;
      }
    }
  }

  // The four registers of block b of 32 values.
  LUCE_DEVICE void codes(int b, uint32_t (&a)[4]) const {
    constexpr uint32_t kOnes = 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (P::low_bits == 8) {
        a[i] = low[4 * b + i];
      } else if constexpr (P::low_bits == 4) {
        a[i] = low[2 * b + i / 2] >> (i % 2 * 4) & 15 * kOnes;
      } else {
        a[i] = low[b] >> 2 * i & 3 * kOnes;
      }
      if constexpr (P::high_bits == 2) a[i] |= (high[b] >> 2 * i & 3 * kOnes) << P::low_bits;
      if constexpr (P::high_bits == 1) a[i] |= (high[b / 2] >> (b % 2 * 4 + i) & kOnes) << P::low_bits;
    }
  }

  LUCE_DEVICE static float to_float(uint32_t half_bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(half_bits)));
  }

  // d and m of block b, of row g + 8 i.
  LUCE_DEVICE float d_of(int i, int b) const {
    const int j = P::is_super ? 0 : f.mins ? 2 * b : b;
    return to_float(d[i][j / 2] >> j % 2 * 16 & 0xFFFF);
  }
  LUCE_DEVICE float m_of(int i, int b) const {
    const int j = P::is_super ? 1 : 2 * b + 1;
    return to_float(d[i][j / 2] >> j % 2 * 16 & 0xFFFF);
  }

  // Byte s of the scales and minima of row g + 8 i: whole numbers, made floats as above.
  LUCE_DEVICE float whole(int i, int s) const {
    return __uint_as_float(0x4B000000u | (sub[i][s / 4] >> s % 4 * 8 & 255)) - 8388608.0f;
  }
  LUCE_DEVICE float scale_of(int i, int s) const {
    if constexpr (P::subs_are_nibbles) return static_cast<float>(sub[i][s / 4] >> s % 4 * 8 & 15);
    return P::subs_are_signed ? whole(i, s) - 128.0f : whole(i, s);
  }
  LUCE_DEVICE float min_of(int i, int s) const {
    if constexpr (P::subs_are_nibbles) return static_cast<float>(sub[i][s / 4] >> (s % 4 * 8 + 4) & 15);
    return whole(i, P::n_subs + s);
  }

 private:
  template <int n>
  LUCE_DEVICE static void load_words(const uint8_t *from, int lane, uint32_t (&words)[n]) {
    if constexpr (n % 4 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        const uint4 w = load_weights(reinterpret_cast<const uint4 *>(from + word_offset(n, i, lane)));
        words[i] = w.x, words[i + 1] = w.y, words[i + 2] = w.z, words[i + 3] = w.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        words[i] = load_weights(reinterpret_cast<const uint32_t *>(from + word_offset(n, i, lane)));
      }
    }
  }
};

// A row of Q8_A.
struct Activation {
  const uint8_t *q;  // null: there is no such row
  int64_t K;

  LUCE_DEVICE float d(int b) const { return q ? reinterpret_cast<const float *>(q + K)[b] : 0.0f; }
  LUCE_DEVICE int2 sums(int b) const {
    if (q == nullptr) return {0, 0};
    const short2 s = reinterpret_cast<const short2 *>(q + K + K / 8)[b];
    return {s.x, s.y};
  }
};

// Adds 32 values of k to the sums of 16 outputs and 8 rows of x (kOne: to those of one row).
template <int type, bool kOne>
LUCE_DEVICE void multiply(const Unit<type> &unit, int b, const uint32_t (&a)[4], const uint32_t (&q)[2],
                          const Activation (&x)[2], int k_block, float (&acc)[4]) {
  using P = Packing<type>;
  constexpr Format f = P::f;
  float d[2];
  int2 sums[2];
#pragma unroll
  for (int c = 0; c < (kOne ? 1 : 2); ++c) {
    d[c] = x[c].d(k_block);
    if (f.mins || f.zero != 0) sums[c] = x[c].sums(k_block);
  }
  if constexpr (f.span == 32) {
    int products[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[i] = kMagic;
      if (f.zero != 0 && (!kOne || i % 2 == 0)) products[i] -= f.zero * (sums[i % 2].x + sums[i % 2].y);
    }
    mma_s8_k32(products, a, q);
#pragma unroll
    for (int i = 0; i < 4; i += kOne ? 2 : 1) {
      const float scale = P::is_super ? unit.d_of(i / 2, b) * unit.scale_of(i / 2, b) : unit.d_of(i / 2, b);
      acc[i] = fmaf(__int_as_float(products[i]) - kMagicFloat, scale * d[i % 2], acc[i]);
      if constexpr (f.mins) {
        const float min = P::is_super ? unit.m_of(i / 2, b) * unit.min_of(i / 2, b) : unit.m_of(i / 2, b);
        acc[i] = fmaf(min, d[i % 2] * static_cast<float>(sums[i % 2].x + sums[i % 2].y), acc[i]);
      }
    }
  } else {
    int first[4], second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first[i] = second[i] = kMagic;
      if (f.zero != 0 && (!kOne || i % 2 == 0)) {
        first[i] -= f.zero * sums[i % 2].x;
        second[i] -= f.zero * sums[i % 2].y;
      }
    }
    mma_s8_k16(first, a[0], a[1], q[0]);
    mma_s8_k16(second, a[2], a[3], q[1]);
#pragma unroll
    for (int i = 0; i < 4; i += kOne ? 2 : 1) {
      const int r = i / 2;
      // Both products and their sum are whole numbers below 2^24: exact.
      const float product = fmaf(__int_as_float(second[i]) - kMagicFloat, unit.scale_of(r, 2 * b + 1),
                                 (__int_as_float(first[i]) - kMagicFloat) * unit.scale_of(r, 2 * b));
      acc[i] = fmaf(product, unit.d_of(r, b) * d[i % 2], acc[i]);
      if constexpr (f.mins) {
        const float min = fmaf(static_cast<float>(sums[i % 2].y), unit.min_of(r, 2 * b + 1),
                               static_cast<float>(sums[i % 2].x) * unit.min_of(r, 2 * b));
        acc[i] = fmaf(min, unit.m_of(r, b) * d[i % 2], acc[i]);
      }
    }
  }
}

// kTiles: of 8 rows of x; 0: one row.
template <int type, int kTiles>
LUCE_DEVICE void matmul(const luce_matmul_args &a) {
  using P = Packing<type>;
  constexpr bool kOne = kTiles == 0;
  constexpr int kColumns = kOne ? 1 : kTiles, kTokens = kOne ? 1 : 8 * kTiles;
  __shared__ float partial[kWarps][kTokens][kTileRows];
  let_next_start();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
  const int K = static_cast<int>(a.weight.ne[0]), N = static_cast<int>(a.weight.ne[1]);
  const int n_units = (K + P::values - 1) / P::values;
  const int end = n_units * (warp + 1) / kWarps;
  int u = n_units * warp / kWarps;
  const uint8_t *tile = static_cast<const uint8_t *>(a.weight.data) + blockIdx.x * P::tile_bytes(K);
  Unit<type> next;
  if (u < end) next.load(tile + int64_t{u} * P::bytes, lane);
  wait_for_previous();

  const int first = blockIdx.y * kTokens, n = min(true_rows(a.n_rows, a.x.ne[1]) - first, kTokens);
  if (n <= 0) return;
  // Of each 8 rows of x: the one whose codes this lane reads, and the two whose sums it has.
  const uint8_t *codes[kColumns];
  Activation x[kColumns][2];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const auto row_of = [&](int c) { return 8 * j + c < n ? row<const uint8_t>(a.x, first + 8 * j + c) : nullptr; };
    codes[j] = row_of(g);
    x[j][0] = {row_of(kOne ? 0 : 2 * t), K};
    x[j][1] = {row_of(kOne ? 1 : 2 * t + 1), K};
  }
  float acc[kColumns][4] = {};
  for (; u < end; ++u) {
    const Unit<type> unit = next;
    if (u + 1 < end) next.load(tile + int64_t{u + 1} * P::bytes, lane);
#pragma unroll
    for (int b = 0; b < P::blocks; ++b) {
      const int k = u * P::values + 32 * b;
      if (!P::is_super && k >= K) break;
      uint32_t registers[4];
      unit.codes(b, registers);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (8 * j >= n) break;
        uint32_t q[2] = {0, 0};
        if (codes[j] != nullptr) {
          if constexpr (P::f.span == 32) {
            const uint2 both = *reinterpret_cast<const uint2 *>(codes[j] + k + 8 * t);
            q[0] = both.x, q[1] = both.y;
          } else {
            q[0] = *reinterpret_cast<const uint32_t *>(codes[j] + k + 4 * t);
            q[1] = *reinterpret_cast<const uint32_t *>(codes[j] + k + 16 + 4 * t);
          }
        }
        multiply<type, kOne>(unit, b, registers, q, x[j], k / 32, acc[j]);
      }
    }
  }

#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 8 * j + 2 * t + i % 2;
      if (token < kTokens) partial[warp][token][g + i / 2 * 8] = acc[j][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n * kTileRows; i += kWarps * kLanes) {
    const int token = i / kTileRows, r = i % kTileRows, j = blockIdx.x * kTileRows + r;
    if (j >= N) continue;
    float y = partial[0][token][r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) y += partial[w][token][r];
    if (a.bias.data) y += list<float>(a.bias)[j];
    if (a.add.data) y += row<const float>(a.add, first + token)[j];
    row<float>(a.out, first + token)[j] = y;
  }
}

}  // namespace

#define LUCE_JOIN_(a, b, c) a##b##_##c
#define LUCE_JOIN(a, b, c) LUCE_JOIN_(a, b, c)
#define LUCE_MATMUL(tiles)                                                                                       \
  LUCE_GLOBAL_(LUCE_JOIN(matmul_, LUCE_WEIGHT, tiles))(const __grid_constant__ luce_matmul_args a, uint32_t *) { \
    matmul<LUCE_WEIGHT_TYPE, tiles>(a);                                                                          \
  }
LUCE_MATMUL(0)
LUCE_MATMUL(1)
LUCE_MATMUL(2)
LUCE_MATMUL(4)
LUCE_MATMUL(8)

}  // namespace luce
