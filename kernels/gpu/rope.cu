// rope.cu: the angles of rotary position embedding, made once for a step and used by every layer (row_chain.cu turns).

#include "kernel.h"
#include "ops.h"

namespace luce {
namespace {

constexpr int kThreads = 128;

void launch_angles(const luce_rope_angles_args &a, Launcher &launcher) {
  const dim3 grid(blocks_of(a.frequencies.ne[0], kThreads), static_cast<unsigned>(a.positions.ne[0]));
  launcher(kernel_rope_angles, grid, kThreads, 0, a);
}

}  // namespace

// The angle is rounded to float, as the models were trained; its sine is of double precision, for angles up to 262144.
LUCE_GLOBAL(rope_angles)(const __grid_constant__ luce_rope_angles_args a, uint32_t *) {
  begin();
  const int i = blockIdx.y, p = blockIdx.x * kThreads + threadIdx.x;
  if (i >= true_rows(a.n_rows, a.positions.ne[0]) || p >= a.frequencies.ne[0]) return;
  const double theta = static_cast<float>(list<int32_t>(a.positions)[i]) * list<float>(a.frequencies)[p];
  double sine, cosine;
  sincos(theta, &sine, &cosine);
  float *out = row<float>(a.out, i) + 2 * p;
  out[0] = static_cast<float>(a.magnitude * cosine);
  out[1] = static_cast<float>(a.magnitude * sine);
}

}  // namespace luce

LUCE_OP(rope_angles, check_rope_angles, launch_angles)
