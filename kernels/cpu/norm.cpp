// norm.cpp: norms of vectors of D values: hidden states (H = 1), the heads of q and k, the outputs of heads (gated).
//
// One vector belongs to one thread: at n = 1 a hidden state is a fraction of a microsecond, less than meeting half-way.

#include <cmath>

#include "kernel.h"
#include "math.h"
#include "ops.h"

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

// out = finish(scale * x, k) for each vector of x, which begins at value k and of which n lanes are there.
template <class Finish>
void scaled(const float *x, float *out, int64_t D, float scale, Finish finish) {
  int64_t k = 0;
  for (; k + kLanes <= D; k += kLanes) store(out + k, finish(load<F32>(x + k) * scale, k, kLanes));
  if (k < D) store_first(out + k, finish(load_first<F32>(x + k, D - k) * scale, k, D - k), D - k);
}

// The next n values of p, all lanes where that is all.
LUCE_INLINE F32 load_some(const float *p, int64_t n) {
  return n == kLanes ? load<F32>(p) : load_first<F32>(p, n);
}

// f(x, h, i, out) for each vector of this thread.
template <class Args, class F>
void for_vectors(const Args &a, const Worker &worker, F f) {
  const int64_t H = a.x.ne[1];
  const Range mine = share(true_rows(a.n_rows, a.x.ne[2]) * H, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t h = u % H, i = u / H;
    f(row<const float>(a.x, h, i), h, i, row<float>(a.out, h, i));
  }
}

void run_rms(const luce_rms_norm_args &a, const Worker &worker) {
  const int64_t D = a.x.ne[0];
  const float *weight = static_cast<const float *>(a.weight.data);
  for_vectors(a, worker, [&](const float *x, int64_t, int64_t, float *out) {
    const float scale = 1 / std::sqrt(sum_of_squares(x, D) / D + a.eps);
    if (weight == nullptr) {
      scaled(x, out, D, scale, [](F32 y, int64_t, int64_t) { return y; });
    } else {
      scaled(x, out, D, scale, [=](F32 y, int64_t k, int64_t n) { return y * load_some(weight + k, n); });
    }
  });
}

Verdict check_l2(const luce_l2_norm_args &a) {
  return check_rows_of_heads(a.x, a.out);
}

void run_l2(const luce_l2_norm_args &a, const Worker &worker) {
  const int64_t D = a.x.ne[0];
  for_vectors(a, worker, [&](const float *x, int64_t, int64_t, float *out) {
    const float scale = 1 / std::sqrt(sum_of_squares(x, D) + a.eps);
    scaled(x, out, D, scale, [](F32 y, int64_t, int64_t) { return y; });
  });
}

Verdict check_gated(const luce_gated_norm_args &a) {
  if (!is_f32(a.gate)) return unsupported("gate is F32, contiguous along D");
  if (!same_shape(a.x, a.gate)) return bad("x and gate have one shape");
  const Verdict verdict = check_rows_of_heads(a.x, a.out);
  return verdict.status == LUCE_OK ? check_norm_weight(a.weight, a.x.ne[0]) : verdict;
}

void run_gated(const luce_gated_norm_args &a, const Worker &worker) {
  const int64_t D = a.x.ne[0];
  const float *weight = static_cast<const float *>(a.weight.data);
  for_vectors(a, worker, [&](const float *x, int64_t h, int64_t i, float *out) {
    const float scale = 1 / std::sqrt(sum_of_squares(x, D) / D + a.eps);
    const float *gate = row<const float>(a.gate, h, i);
    scaled(x, out, D, scale, [=](F32 y, int64_t k, int64_t n) {
      const F32 g = load_some(gate + k, n);
      return y * load_some(weight + k, n) * times_sigmoid(g, g);
    });
  });
}

}  // namespace

LUCE_KERNEL(rms_norm, check_rms_norm, run_rms)
LUCE_KERNEL(l2_norm, check_l2, run_l2)
LUCE_KERNEL(gated_norm, check_gated, run_gated)

}  // namespace luce::LUCE_ISA
