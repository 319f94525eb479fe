// embed.cpp: out[:, i] = scale * weight[:, ids[i]]: rows of any weight type [E, V], as they lie in the file, to F32.
//
// The threads share the n * E / piece pieces of the output, so that one row (decode) and many cost each of them the
// same.

#include <algorithm>

#include "blocks.h"
#include "kernel.h"
#include "scales.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kPiece = 256;  // a whole number of blocks of any type

template <class BlockOf>
void decode(const uint8_t *in, int64_t n, float scale, float *out) {
  constexpr Format f = BlockOf::format;
  for (int64_t k = 0; k < n; k += f.values, in += f.bytes) {
    Block block;
    BlockOf::read(in, block);
    for (int s = 0; s < f.values / f.span; ++s) {
      const float d = span_scale<f>(block, s), m = span_min<f>(block, s);
      for (int i = s * f.span; i < (s + 1) * f.span; ++i) {
        const float value = d * (level(f, block.code[i]) - f.zero);
        out[k + i] = scale * (f.mins ? value + m : value);
      }
    }
  }
}

// Values [begin, begin + n) of a row.
void decode_piece(int32_t type, const uint8_t *row, int64_t begin, int64_t n, float scale, float *out) {
  const auto *halves = reinterpret_cast<const uint16_t *>(row) + begin;
  if (type == LUCE_F32) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * reinterpret_cast<const float *>(row)[begin + i];
  } else if (type == LUCE_F16) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * f16_to_f32(halves[i]);
  } else if (type == LUCE_BF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * bf16_to_f32(halves[i]);
  } else {
    with_block(type, [&](auto block_of) {
      constexpr Format f = decltype(block_of)::format;
      decode<decltype(block_of)>(row + begin / f.values * f.bytes, n, scale, out);
    });
  }
}

Verdict check(const luce_embed_args &a) {
  const int64_t E = a.weight.ne[0];
  if (a.weight.layout != LUCE_ROWS) return unsupported("the weight is read in LUCE_ROWS");
  if (a.ids.type != LUCE_I32 || a.out.type != LUCE_F32) return unsupported("ids are I32, out is F32");
  if (a.ids.nb[0] != 4 || a.out.nb[0] != 4) return unsupported("ids and rows of out are contiguous");
  if (a.out.ne[0] != E || a.out.ne[1] != a.ids.ne[0]) return bad("out is [E, n] for weight [E, V] and ids [n]");
  if (is_float(a.weight.type)) return {};
  Verdict verdict = unsupported("weight is of no weight type");
  with_block(a.weight.type, [&](auto block_of) {
    verdict = E % decltype(block_of)::format.values == 0 ? Verdict{} : bad("a row of the weight is not whole blocks");
  });
  return verdict;
}

void run(const luce_embed_args &a, const Worker &worker) {
  const int64_t E = a.weight.ne[0], n_pieces = (E + kPiece - 1) / kPiece;
  const int32_t *ids = static_cast<const int32_t *>(a.ids.data);
  const Range mine = share(true_rows(a.n_rows, a.ids.ne[0]) * n_pieces, worker);
  for (int64_t piece = mine.begin; piece < mine.end; ++piece) {
    const int64_t i = piece / n_pieces, begin = piece % n_pieces * kPiece, n = std::min(kPiece, E - begin);
    float *out = row<float>(a.out, i) + begin;
    if (ids[i] < 0 || ids[i] >= a.weight.ne[1]) {
      worker.fault(LUCE_FAULT_TOKEN);
      std::fill_n(out, n, 0.0f);
    } else {
      decode_piece(a.weight.type, row<const uint8_t>(a.weight, ids[i]), begin, n, a.scale, out);
    }
  }
}

}  // namespace

LUCE_KERNEL(embed, check, run)

}  // namespace luce::LUCE_ISA
