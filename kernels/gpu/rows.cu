// rows.cu: out[:, i] = x[:, index[i]]: the rows of a step whose logits somebody wants.

#include "kernel.h"
#include "ops.h"

namespace luce {
namespace {

constexpr int kThreads = 256;

void launch(const luce_rows_args &a, Launcher &launcher) {
  const dim3 grid(blocks_of(a.x.ne[0], kThreads), static_cast<unsigned>(a.index.ne[0]));
  launcher(kernel_rows, grid, kThreads, 0, a);
}

}  // namespace

LUCE_GLOBAL(rows)(const __grid_constant__ luce_rows_args a, uint32_t *fault) {
  begin();
  const int i = blockIdx.y;
  const int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= true_rows(a.n_rows, a.index.ne[0]) || k >= a.x.ne[0]) return;
  const int from = list<int32_t>(a.index)[i];
  const bool is_there = from >= 0 && from < a.x.ne[1];
  if (!is_there) set_fault(fault, LUCE_FAULT_ROW);
  row<float>(a.out, i)[k] = is_there ? row<const float>(a.x, from)[k] : 0.0f;
}

}  // namespace luce

LUCE_OP(rows, check_rows, launch)
