// pack.cpp: luce_packed_bytes and luce_pack; the layouts are described in pack.h and pack_floats.h.

#include "pack.h"

#include <algorithm>

#include "context.h"
#include "pack_floats.h"

namespace luce {
namespace {

constexpr int64_t n_tiles(int64_t n_rows) {
  return (n_rows + kTileRows - 1) / kTileRows;
}

// Adds `bits` bits of 32 codes, from bit `begin` on, to a plane: `bits` vectors of 64 bytes, 0 at first. Four codes,
// one byte each, are moved as one word.
void add_plane(const uint8_t *code, int begin, int bits, int row, uint8_t *plane) {
  const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
  for (int group = 0; group < 8; ++group) {
    uint32_t four, planed;
    std::memcpy(&four, code + 4 * group, 4);
    const int vector = bits == 4 ? group % 4 : group * bits / 8, shift = bits == 4 ? group / 4 * 4 : group * bits % 8;
    uint8_t *place = plane + 64 * vector + 4 * row;
    std::memcpy(&planed, place, 4);
    planed |= (four >> begin & mask) << shift;
    std::memcpy(place, &planed, 4);
  }
}

void add_codes(const Format &f, const uint8_t *code, int row, uint8_t *out) {
  const int low = low_bits(f);
  add_plane(code, 0, low, row, out);
  if (f.bits > low) add_plane(code, low, f.bits - low, row, out + 64 * low);
}

void put_scales(const Format &f, const Block &block, int row, uint8_t *out) {
  if (f.scales == Scales::kPowers) {
    out[row] = block.d;
  } else if (f.scales != Scales::kFloats) {
    std::memcpy(out + 2 * row, &block.d, 2);
  }
  if (f.mins) std::memcpy(out + 2 * kTileRows + 2 * row, &block.m, 2);
  if (!has_subscales(f)) return;
  uint8_t *span = out + block_d_bytes(f) + row;
  for (int s = 0; s < f.values / f.span; ++s, span += span_bytes(f)) {
    if (subscales_are_nibbles(f)) {
      *span = block.scale[s] | block.min[s] << 4;
    } else {
      *span = block.scale[s];
      if (f.mins) span[kTileRows] = block.min[s];
    }
  }
}

template <class BlockOf>
void pack_tile(const luce_tensor &weight, int64_t tile, uint8_t *out) {
  constexpr Format f = BlockOf::format;
  const int64_t K = weight.ne[0];
  std::memset(out, 0, tile_bytes(f, K));
  for (int64_t row = tile * kTileRows; row < std::min((tile + 1) * kTileRows, weight.ne[1]); ++row) {
    const int lane = row % kTileRows;
    const uint8_t *in = static_cast<const uint8_t *>(weight.data) + row * weight.nb[1];
    for (int64_t b = 0; b < K / f.values; ++b, in += f.bytes) {
      Block block;
      BlockOf::read(in, block);
      for (int k = 0; k < f.values; k += 32) {
        add_codes(f, block.code + k, lane, out + (b * f.values + k) / 32 * code_bytes(f));
      }
      put_scales(f, block, lane, out + tile_code_bytes(f, K) + b * block_scale_bytes(f));
    }
  }
}

// How weights of one type and width are packed, tile by tile.
struct Packing {
  int64_t block;  // values that belong together; 0: it is no weight type
  int64_t tile_bytes;
  void (*pack)(const luce_tensor &weight, int64_t tile, uint8_t *out);
};

Packing packing_of(const luce_tensor &weight) {
  const int64_t K = weight.ne[0];
  if (is_float(weight.type)) return {1, float_tile_bytes(weight.type, K), pack_float_tile};
  Packing packing = {};
  with_block(weight.type, [&](auto block_of) {
    constexpr Format f = decltype(block_of)::format;
    packing = {f.values, tile_bytes(f, K), pack_tile<decltype(block_of)>};
  });
  return packing;
}

}  // namespace
}  // namespace luce

extern "C" luce_status luce_packed_bytes(luce_context *context, const luce_tensor *weight, int64_t *out_bytes) {
  *out_bytes = 0;
  const int64_t K = weight->ne[0];
  const luce::Packing packing = luce::packing_of(*weight);
  if (packing.block == 0) {
    return context->fail(LUCE_UNSUPPORTED, "type " + std::to_string(weight->type) + " is no weight type");
  }
  if (K % packing.block != 0) {
    return context->fail(LUCE_BAD_ARGUMENT, "a row of " + std::to_string(K) + " values is not whole blocks");
  }
  *out_bytes = luce::n_tiles(weight->ne[1]) * packing.tile_bytes;
  return LUCE_OK;
}

extern "C" luce_status luce_pack(luce_context *context, const luce_tensor *weight, void *packed, int64_t row_begin,
                                 int64_t row_end) {
  int64_t bytes = 0;
  const luce_status status = luce_packed_bytes(context, weight, &bytes);
  if (status != LUCE_OK) return status;
  if (weight->layout != LUCE_ROWS) return context->fail(LUCE_BAD_ARGUMENT, "this weight is packed already");
  if (row_begin < 0 || row_begin % luce::kTileRows != 0 || row_end < row_begin || row_end > weight->ne[1]) {
    return context->fail(LUCE_BAD_ARGUMENT, "rows to pack begin at a multiple of 16 and lie within the weight");
  }
  const luce::Packing packing = luce::packing_of(*weight);
  auto job = [&](int index) {
    const int64_t first = row_begin / luce::kTileRows, n = luce::n_tiles(row_end) - first;
    const luce::Range tiles = luce::share(n, index, context->threads.count());
    for (int64_t tile = first + tiles.begin; tile < first + tiles.end; ++tile) {
      packing.pack(*weight, tile, static_cast<uint8_t *>(packed) + tile * packing.tile_bytes);
    }
  };
  context->threads.run(1, [](void *data, int, int part, int) { (*static_cast<decltype(job) *>(data))(part); }, &job);
  return LUCE_OK;
}
