// rope.cu: rotary position embedding. The angles are made once for a step and used by every layer.

#include "check.h"

namespace luce {
namespace {

constexpr int kThreads = 128;

Verdict check_angles(const luce_rope_angles_args &a) {
  if (!is_i32(a.positions) || !is_f32(a.frequencies) || !is_f32(a.out)) {
    return unsupported("positions are I32, frequencies and out F32, contiguous along ne[0]");
  }
  if (a.out.ne[0] != 2 * a.frequencies.ne[0]) return bad("out has two values for each frequency");
  return a.out.ne[1] == a.positions.ne[0] ? Verdict{} : bad("out has a row for each position");
}

void launch_angles(const luce_rope_angles_args &a, Launcher &launcher) {
  const dim3 grid(blocks_of(a.frequencies.ne[0], kThreads), static_cast<unsigned>(a.positions.ne[0]));
  launcher(kernel_rope_angles, grid, kThreads, 0, a);
}

Verdict check_rope(const luce_rope_args &a) {
  if (!is_f32(a.x) || !is_f32(a.angles) || !is_f32(a.out)) return unsupported("all tensors are F32, contiguous in D");
  if (a.mode != LUCE_ROPE_NORM && a.mode != LUCE_ROPE_NEOX) return unsupported("mode is NORM or NEOX");
  if (!same_shape(a.x, a.out)) return bad("x and out have one shape");
  if (a.angles.ne[0] > a.x.ne[0] || a.angles.ne[0] % 2 != 0) return bad("n_rot is even and at most D");
  return a.angles.ne[1] == a.x.ne[2] ? Verdict{} : bad("angles have a row for each row of x");
}

void launch_rope(const luce_rope_args &a, Launcher &launcher) {
  const dim3 grid(static_cast<unsigned>(a.x.ne[1]), static_cast<unsigned>(a.x.ne[2]));
  launcher(kernel_rope, grid, a.x.ne[0] <= 64 ? 32 : kThreads, 0, a);
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

// A thread turns pairs, and reads one before it writes it: out may be x.
LUCE_GLOBAL(rope)(const __grid_constant__ luce_rope_args a, uint32_t *) {
  begin();
  const int h = blockIdx.x, i = blockIdx.y;
  if (i >= true_rows(a.n_rows, a.x.ne[2])) return;
  const int D = static_cast<int>(a.x.ne[0]), half = static_cast<int>(a.angles.ne[0]) / 2;
  const float *x = row<const float>(a.x, h, i), *angles = row<const float>(a.angles, i);
  float *out = row<float>(a.out, h, i);
  for (int p = threadIdx.x; p < half; p += blockDim.x) {
    const int first = a.mode == LUCE_ROPE_NORM ? 2 * p : p, second = a.mode == LUCE_ROPE_NORM ? 2 * p + 1 : p + half;
    const float u = x[first], v = x[second], cosine = angles[2 * p], sine = angles[2 * p + 1];
    out[first] = u * cosine - v * sine;
    out[second] = u * sine + v * cosine;
  }
  for (int k = 2 * half + threadIdx.x; k < D; k += blockDim.x) out[k] = x[k];
}

}  // namespace luce

LUCE_OP(rope_angles, check_angles, launch_angles)
LUCE_OP(rope, check_rope, launch_rope)
