// norm.cu: RMS norm of vectors of D values: hidden states (H = 1) and the heads of q and k.
//
// A block makes one vector; a short one is the work of a warp. The number of threads, and so the order of the sum,
// depends on D alone.

#include "check.h"

namespace luce {
namespace {

constexpr int kMostWarps = 32;

Verdict check(const luce_rms_norm_args &a) {
  if (!is_f32(a.x) || !is_f32(a.out)) return unsupported("x and out are F32, contiguous along D");
  if (!same_shape(a.x, a.out)) return bad("x and out have one shape");
  if (a.weight.data == nullptr) return {};
  if (!is_f32(a.weight)) return unsupported("weight is F32");
  return a.weight.ne[0] == a.x.ne[0] ? Verdict{} : bad("weight has D values");
}

void launch(const luce_rms_norm_args &a, Launcher &launcher) {
  const int64_t D = a.x.ne[0];
  const int n_threads = D <= 256 ? 32 : D <= 2048 ? 256 : 1024;
  const dim3 grid(static_cast<unsigned>(a.x.ne[1]), static_cast<unsigned>(a.x.ne[2]));
  launcher(kernel_rms_norm, grid, n_threads, 0, a);
}

}  // namespace

LUCE_GLOBAL(rms_norm)(const __grid_constant__ luce_rms_norm_args a, uint32_t *) {
  __shared__ float room[kMostWarps];
  begin();
  const int h = blockIdx.x, i = blockIdx.y;
  if (i >= true_rows(a.n_rows, a.x.ne[2])) return;
  const int D = static_cast<int>(a.x.ne[0]);
  const float *x = row<const float>(a.x, h, i), *weight = list<float>(a.weight);
  float *out = row<float>(a.out, h, i);
  float sum = 0;
  for (int k = threadIdx.x; k < D; k += blockDim.x) sum = fmaf(x[k], x[k], sum);
  const float scale = 1 / sqrtf(sum_of_block(sum, room) / static_cast<float>(D) + a.eps);
  for (int k = threadIdx.x; k < D; k += blockDim.x) {
    const float y = x[k] * scale;
    out[k] = weight ? y * weight[k] : y;
  }
}

}  // namespace luce

LUCE_OP(rms_norm, check, launch)
