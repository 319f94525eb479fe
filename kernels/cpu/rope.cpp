// rope.cpp: rotary position embedding. The angles are made once for a step and used by every layer.

#include <cmath>

#include "kernel.h"
#include "ops.h"
#include "simd.h"

namespace luce::LUCE_ISA {
namespace {

// The angle is rounded to float, as the models were trained; its sine is of double precision, for angles up to 262144.
void run_angles(const luce_rope_angles_args &a, const Worker &worker) {
  const int32_t *positions = static_cast<const int32_t *>(a.positions.data);
  const float *frequencies = static_cast<const float *>(a.frequencies.data);
  const int64_t n_pairs = a.frequencies.ne[0];
  const Range mine = share(true_rows(a.n_rows, a.positions.ne[0]) * n_pairs, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / n_pairs, p = u % n_pairs;
    const double theta = static_cast<float>(positions[i]) * frequencies[p];
    float *out = row<float>(a.out, i) + 2 * p;
    out[0] = static_cast<float>(a.magnitude * std::cos(theta));
    out[1] = static_cast<float>(a.magnitude * std::sin(theta));
  }
}

// A pair is read before it is written, so out may be x: ivdep tells the compiler.
void rotate_norm(const float *x, const float *angles, float *out, int64_t n_rot) {
#pragma GCC ivdep
  for (int64_t p = 0; p < n_rot; p += 2) {
    const float a = x[p], b = x[p + 1], cos = angles[p], sin = angles[p + 1];
    out[p] = a * cos - b * sin;
    out[p + 1] = a * sin + b * cos;
  }
}

void rotate_neox(const float *x, const float *angles, float *out, int64_t n_rot) {
  const int64_t half = n_rot / 2;
#pragma GCC ivdep
  for (int64_t p = 0; p < half; ++p) {
    const float a = x[p], b = x[p + half], cos = angles[2 * p], sin = angles[2 * p + 1];
    out[p] = a * cos - b * sin;
    out[p + half] = a * sin + b * cos;
  }
}

void run_rope(const luce_rope_args &a, const Worker &worker) {
  const int64_t D = a.x.ne[0], H = a.x.ne[1], n_rot = a.angles.ne[0];
  const Range mine = share(true_rows(a.n_rows, a.x.ne[2]) * H, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t h = u % H, i = u / H;
    const float *x = row<const float>(a.x, h, i), *angles = row<const float>(a.angles, i);
    float *out = row<float>(a.out, h, i);
    (a.mode == LUCE_ROPE_NORM ? rotate_norm : rotate_neox)(x, angles, out, n_rot);
    if (out != x) std::memcpy(out + n_rot, x + n_rot, (D - n_rot) * sizeof(float));
  }
}

}  // namespace

LUCE_KERNEL(rope_angles, check_rope_angles, run_angles)
LUCE_KERNEL(rope, check_rope, run_rope)

}  // namespace luce::LUCE_ISA
