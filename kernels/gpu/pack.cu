// pack.cu: luce_packed_bytes and luce_pack; the layout is described in pack.cuh. F32, F16 and BF16 are not packed.
//
// luce_pack runs on the stream: `weight` is in device memory, where rows [row_begin, row_end) are all that is read.

#include "context.h"
#include "kernel.h"
#include "pack.cuh"

namespace luce {

struct PackArgs {
  const uint8_t *weight;
  int64_t row_stride;
  uint8_t *packed;
  int64_t K, row_begin, row_end;
};

namespace {

template <int type>
struct Packer {
  using P = Packing<type>;
  using Block = BlockOf<type>;

  const PackArgs &a;
  int64_t tile, unit;

  LUCE_DEVICE const uint8_t *block(int64_t r, int64_t k) const {
    return a.weight + r * a.row_stride + k / P::f.values * P::f.bytes;
  }
  LUCE_DEVICE bool is_there(int64_t r, int64_t k) const { return r < a.row_end && k < a.K; }

  // Code of value i of the unit in row r of the tile; 0 where the weight ends.
  LUCE_DEVICE int code(int r, int i) const {
    const int64_t row = tile * kTileRows + r, k = unit * P::values + i;
    return is_there(row, k) ? Block::code(block(row, k), static_cast<int>(k % P::f.values)) & 255 : 0;
  }

  // Bits [begin, begin + bits) of the codes of word i of a lane, in its plane.
  LUCE_DEVICE uint32_t word(int begin, int bits, int i, int lane) const {
    const int g = lane / 4, t = lane % 4, per_byte = 8 / bits, mask = (1 << bits) - 1;
    uint32_t w = 0;
    for (int field = 0; field < per_byte; ++field) {
      const int which = i * per_byte + field, b = which / 4;
      // A word of nibbles holds registers 0, 1 or 2, 3: their order is that of the fields.
      const int f = which % 4;
      for (int j = 0; j < 4; ++j) {
        const int c = code(g + 8 * (f % 2), b * 32 + place<P::f.span>(f / 2, t, j));
        w |= static_cast<uint32_t>(c >> begin & mask) << (8 * j + bits * field);
      }
    }
    return w;
  }

  LUCE_DEVICE uint16_t half_bits(float x) const { return __half_as_ushort(__float2half_rn(x)); }

  LUCE_DEVICE void put_scales(uint8_t *out, int r) const {
    const int64_t row = tile * kTileRows + r;
    uint16_t *d = reinterpret_cast<uint16_t *>(out + r * P::d_bytes);
    for (int b = 0; b < (P::is_super ? 1 : 2); ++b) {
      const int64_t k = unit * P::values + 32 * b;
      const bool there = is_there(row, k);
      d[b * (P::f.mins ? 2 : 1)] = there ? half_bits(Block::d(block(row, k))) : 0;
      if (P::f.mins) d[b * 2 + 1] = there ? half_bits(Block::m(block(row, k))) : 0;
    }
    if (!P::is_super) return;
    uint8_t *sub = out + kTileRows * P::d_bytes + r * P::sub_bytes;
    const bool there = row < a.row_end;
    for (int s = 0; s < P::n_subs; ++s) {
      const int scale = there ? Block::scale(block(row, unit * P::values), s) : 0;
      const int min = there && P::f.mins ? Block::min(block(row, unit * P::values), s) : 0;
      if (P::subs_are_nibbles) {
        sub[sub_place<P::f.span>(s, false)] = static_cast<uint8_t>(scale | min << 4);
      } else {
        sub[sub_place<P::f.span>(s, false)] = static_cast<uint8_t>(P::subs_are_signed ? scale + 128 : scale);
        if (P::f.mins) sub[sub_place<P::f.span>(s, true)] = static_cast<uint8_t>(min);
      }
    }
  }

  LUCE_DEVICE void run() const {
    const int lane = threadIdx.x;
    uint8_t *out = a.packed + tile * P::tile_bytes(a.K) + unit * P::bytes;
    for (int i = 0; i < P::low_words; ++i) {
      *reinterpret_cast<uint32_t *>(out + word_offset(P::low_words, i, lane)) = word(0, P::low_bits, i, lane);
    }
    if constexpr (P::high_bits > 0) {
      uint8_t *high = out + P::low_words * 4 * kLanes;
      for (int i = 0; i < P::high_words; ++i) {
        *reinterpret_cast<uint32_t *>(high + word_offset(P::high_words, i, lane)) =
            word(P::low_bits, P::high_bits, i, lane);
      }
    }
    if (lane < kTileRows) put_scales(out + P::code_bytes, lane);
  }
};

template <int type>
LUCE_DEVICE void pack(const PackArgs &a) {
  begin();
  Packer<type>{a, a.row_begin / kTileRows + blockIdx.y, blockIdx.x}.run();
}

struct PackKernel {
  int id, values;
  int64_t bytes;  // of the packed weight
};

// id -1: the type is not packed.
PackKernel pack_kernel(const luce_tensor &weight) {
  const int64_t n_tiles = (weight.ne[1] + kTileRows - 1) / kTileRows;
  switch (weight.type) {
#define LUCE_CASE(name, type) \
  case type:                  \
    return {kernel_pack_##name, Packing<type>::values, n_tiles * Packing<type>::tile_bytes(weight.ne[0])};
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return {-1, 0, 0};
  }
}

}  // namespace

#define LUCE_PACK(name, type)                                                \
  LUCE_GLOBAL(pack_##name)(const __grid_constant__ PackArgs a, uint32_t *) { \
    pack<type>(a);                                                           \
  }
LUCE_QUANTISED(LUCE_PACK)

}  // namespace luce

extern "C" luce_status luce_packed_bytes(luce_context *context, const luce_tensor *weight, int64_t *out_bytes) {
  *out_bytes = 0;
  if (luce::is_float(weight->type)) return LUCE_OK;
  const int values = luce::block_values(weight->type);
  if (values == 0) {
    return context->fail(LUCE_UNSUPPORTED,
                         "the CUDA library has no kernels for weights of type " + std::to_string(weight->type));
  }
  if (weight->ne[0] % values != 0) {
    return context->fail(LUCE_BAD_ARGUMENT,
                         "a row of " + std::to_string(weight->ne[0]) + " values is not whole blocks");
  }
  *out_bytes = luce::pack_kernel(*weight).bytes;
  return LUCE_OK;
}

extern "C" luce_status luce_pack(luce_context *context, const luce_tensor *weight, void *packed, int64_t row_begin,
                                 int64_t row_end) {
  int64_t bytes = 0;
  const luce_status status = luce_packed_bytes(context, weight, &bytes);
  if (status != LUCE_OK) return status;
  if (bytes == 0) return context->fail(LUCE_UNSUPPORTED, "this type is read as it is, not packed");
  if (weight->layout != LUCE_ROWS) return context->fail(LUCE_BAD_ARGUMENT, "this weight is packed already");
  if (row_begin < 0 || row_begin % luce::kTileRows != 0 || row_end < row_begin || row_end > weight->ne[1]) {
    return context->fail(LUCE_BAD_ARGUMENT, "rows to pack begin at a multiple of 16 and lie within the weight");
  }
  const luce::PackKernel kernel = luce::pack_kernel(*weight);
  const luce::PackArgs args = {static_cast<const uint8_t *>(weight->data),
                               weight->nb[1],
                               static_cast<uint8_t *>(packed),
                               weight->ne[0],
                               row_begin,
                               row_end};
  luce::Launcher launcher = {context->stream,      context->fault,    context->n_multiprocessors,
                             context->most_shared, context->arrivals, context->scratch};
  launcher.error = cudaSetDevice(context->device);
  const dim3 grid(luce::blocks_of(weight->ne[0], kernel.values), luce::blocks_of(row_end - row_begin, luce::kTileRows));
  launcher(kernel.id, grid, luce::kLanes, 0, args);
  if (launcher.error == cudaSuccess) return LUCE_OK;
  return context->fail(LUCE_FAULT, std::string("pack: ") + cudaGetErrorString(launcher.error));
}
