// embed.cu: out[:, i] = scale * weight[:, ids[i]]: rows of any weight type [E, V], as they lie in the file, to F32.
//
// A thread makes one value: the table's row is a few kilobytes, the kernel a microsecond of latency.

#include "kernel.h"
#include "quant.cuh"

namespace luce {
namespace {

constexpr int kThreads = 256;

template <int type>
LUCE_DEVICE void embed(const luce_embed_args &a, uint32_t *fault) {
  begin();
  const int i = blockIdx.y;
  const int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= true_rows(a.n_rows, a.ids.ne[0]) || k >= a.weight.ne[0]) return;
  const int id = list<int32_t>(a.ids)[i];
  const bool is_there = id >= 0 && id < a.weight.ne[1];
  if (!is_there) set_fault(fault, LUCE_FAULT_TOKEN);
  row<float>(a.out, i)[k] = is_there ? a.scale * value_of<type>(row<const uint8_t>(a.weight, id), k) : 0.0f;
}

Verdict check(const luce_embed_args &a) {
  const int64_t E = a.weight.ne[0];
  if (a.weight.layout != LUCE_ROWS) return unsupported("the weight is read in LUCE_ROWS");
  if (a.ids.type != LUCE_I32 || a.out.type != LUCE_F32) return unsupported("ids are I32, out is F32");
  if (a.ids.nb[0] != 4 || a.out.nb[0] != 4) return unsupported("ids and rows of out are contiguous");
  if (a.out.ne[0] != E || a.out.ne[1] != a.ids.ne[0]) return bad("out is [E, n] for weight [E, V] and ids [n]");
  if (is_float(a.weight.type)) return {};
  const int values = block_values(a.weight.type);
  if (values == 0) return unsupported("the CUDA library has no kernels for such a weight");
  return E % values == 0 ? Verdict{} : bad("a row of the weight is not whole blocks");
}

int kernel_of(int32_t type) {
  switch (type) {
    case LUCE_F32:
      return kernel_embed_f32;
    case LUCE_F16:
      return kernel_embed_f16;
    case LUCE_BF16:
      return kernel_embed_bf16;
#define LUCE_CASE(name, type) \
  case type:                  \
    return kernel_embed_##name;
      LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return -1;  // check() has refused it
  }
}

void launch(const luce_embed_args &a, Launcher &launcher) {
  const dim3 grid(blocks_of(a.weight.ne[0], kThreads), static_cast<unsigned>(a.ids.ne[0]));
  launcher(kernel_of(a.weight.type), grid, kThreads, 0, a);
}

}  // namespace

#define LUCE_EMBED(name, type)                                                            \
  LUCE_GLOBAL(embed_##name)(const __grid_constant__ luce_embed_args a, uint32_t *fault) { \
    embed<type>(a, fault);                                                                \
  }
LUCE_EMBED(f32, LUCE_F32)
LUCE_EMBED(f16, LUCE_F16)
LUCE_EMBED(bf16, LUCE_BF16)
LUCE_QUANTISED(LUCE_EMBED)

}  // namespace luce

LUCE_OP(embed, check, launch)
