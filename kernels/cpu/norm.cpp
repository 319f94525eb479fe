// norm.cpp: RMS norm of vectors of D values: hidden states (H = 1) and the heads of q and k.
//
// One vector belongs to one thread: at n = 1 a hidden state is a fraction of a microsecond, less than meeting half-way.

#include <cmath>

#include "check.h"
#include "simd.h"

namespace luce::LUCE_ISA {
namespace {

// Four vectors of partial sums: one order for a given D.
float sum_of_squares(const float *x, int64_t D) {
  F32 part[4] = {};
  int64_t k = 0;
  for (; k + 4 * kLanes <= D; k += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F32 v = load<F32>(x + k + j * kLanes);
      part[j] = fma(v, v, part[j]);
    }
  }
  for (int j = 0; k < D; k += kLanes, ++j) {
    const F32 v = load_first<F32>(x + k, D - k < kLanes ? D - k : kLanes);
    part[j] = fma(v, v, part[j]);
  }
  return sum((part[0] + part[1]) + (part[2] + part[3]));
}

void normalise(const float *x, const float *weight, float *out, int64_t D, float eps) {
  const float scale = 1 / std::sqrt(sum_of_squares(x, D) / D + eps);
  int64_t k = 0;
  for (; k + kLanes <= D; k += kLanes) {
    const F32 y = load<F32>(x + k) * scale;
    store(out + k, weight ? y * load<F32>(weight + k) : y);
  }
  if (k < D) {
    const F32 y = load_first<F32>(x + k, D - k) * scale;
    store_first(out + k, weight ? y * load_first<F32>(weight + k, D - k) : y, D - k);
  }
}

Verdict check(const luce_rms_norm_args &a) {
  if (!is_f32(a.x) || !is_f32(a.out)) return unsupported("x and out are F32, contiguous along D");
  if (!same_shape(a.x, a.out)) return bad("x and out have one shape");
  if (a.weight.data == nullptr) return {};
  if (!is_f32(a.weight)) return unsupported("weight is F32");
  return a.weight.ne[0] == a.x.ne[0] ? Verdict{} : bad("weight has D values");
}

void run(const luce_rms_norm_args &a, const Worker &worker) {
  const int64_t H = a.x.ne[1];
  const Range mine = share(true_rows(a.n_rows, a.x.ne[2]) * H, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t h = u % H, i = u / H;
    normalise(row<const float>(a.x, h, i), static_cast<const float *>(a.weight.data), row<float>(a.out, h, i),
              a.x.ne[0], a.eps);
  }
}

}  // namespace

LUCE_KERNEL(rms_norm, check, run)

}  // namespace luce::LUCE_ISA
