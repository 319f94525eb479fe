// pointwise.cu: softcap, whose rows may be of a whole vocabulary. A thread makes one value of one row.

#include "kernel.h"
#include "ops.h"

namespace luce {
namespace {

constexpr int kThreads = 256;

void launch(const luce_softcap_args &a, Launcher &launcher) {
  launcher(kernel_softcap, dim3(blocks_of(a.out.ne[0], kThreads), static_cast<unsigned>(a.out.ne[1])), kThreads, 0, a);
}

}  // namespace

LUCE_GLOBAL(softcap)(const __grid_constant__ luce_softcap_args a, uint32_t *) {
  begin();
  const int i = blockIdx.y;
  const int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= true_rows(a.n_rows, a.out.ne[1]) || k >= a.out.ne[0]) return;
  row<float>(a.out, i)[k] = a.cap * tanhf(row<const float>(a.x, i)[k] / a.cap);
}

}  // namespace luce

LUCE_OP(softcap, check_softcap, launch)
