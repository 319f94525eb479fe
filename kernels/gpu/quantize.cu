// quantize.cu: rows of F32 to rows of Q8_A. A warp makes a block of 32 values, a lane one of them.

#include "check.h"
#include "quantize.cuh"

namespace luce {
namespace {

constexpr int kWarps = 8;

Verdict check(const luce_quantize_args &a) {
  if (a.x.type != LUCE_F32 || a.out.type != LUCE_Q8_A) return unsupported("x is F32, out is Q8_A");
  if (a.x.nb[0] != 4) return unsupported("rows of x are contiguous");
  if (a.x.ne[0] % 32 != 0) return unsupported("K is a multiple of 32");
  if (a.x.ne[0] != a.out.ne[0] || a.x.ne[1] != a.out.ne[1]) return bad("x and out have one shape");
  return {};
}

void launch(const luce_quantize_args &a, Launcher &launcher) {
  const dim3 grid(blocks_of(a.x.ne[0] / 32, kWarps), static_cast<unsigned>(a.x.ne[1]));
  launcher(kernel_quantize, grid, kWarps * kLanes, 0, a);
}

}  // namespace

LUCE_GLOBAL(quantize)(const __grid_constant__ luce_quantize_args a, uint32_t *) {
  begin();
  const int i = blockIdx.y, b = blockIdx.x * kWarps + threadIdx.x / kLanes;
  if (i >= true_rows(a.n_rows, a.x.ne[1]) || b >= a.x.ne[0] / 32) return;
  const float x = row<const float>(a.x, i)[b * 32 + threadIdx.x % kLanes];
  quantize_block(x, row<uint8_t>(a.out, i), a.x.ne[0], b);
}

}  // namespace luce

LUCE_OP(quantize, check, launch)
