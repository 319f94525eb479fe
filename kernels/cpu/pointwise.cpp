// pointwise.cpp: ops that treat each value alone: add, scale, glu, gate, softcap. Threads share blocks of kBlock values
// of a row.

#include "kernel.h"
#include "math.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kBlock = 512;

template <class Op>
void for_each(const luce_tensor &a, const luce_tensor &b, const luce_tensor &out, const int32_t *n_rows,
              const Worker &worker, Op op) {
  const int64_t D = out.ne[0], n_blocks = (D + kBlock - 1) / kBlock;
  const Range mine = share(true_rows(n_rows, out.ne[1]) * n_blocks, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / n_blocks, begin = u % n_blocks * kBlock, end = begin + kBlock < D ? begin + kBlock : D;
    const float *x = row<const float>(a, i), *y = row<const float>(b, i);
    float *z = row<float>(out, i);
    int64_t k = begin;
    for (; k + kLanes <= end; k += kLanes) store(z + k, op(load<F32>(x + k), load<F32>(y + k)));
    const int64_t rest = end - k;
    if (rest > 0) store_first(z + k, op(load_first<F32>(x + k, rest), load_first<F32>(y + k, rest)), rest);
  }
}

void run_add(const luce_add_args &a, const Worker &worker) {
  for_each(a.a, a.b, a.out, a.n_rows, worker, [](F32 x, F32 y) { return x + y; });
}

Verdict check_scale(const luce_scale_args &a) {
  return check_shapes(a.x, a.x, a.out);
}

void run_scale(const luce_scale_args &a, const Worker &worker) {
  const float factor = a.factor;
  for_each(a.x, a.x, a.out, a.n_rows, worker, [factor](F32 x, F32) { return factor * x; });
}

// 0.5 g (1 + tanh u) = g / (1 + e^-2u), which does not cancel for negative g.
LUCE_INLINE F32 gelu_tanh(F32 g) {
  constexpr float kTwiceSqrt2OverPi = 1.59576912f;
  return times_sigmoid(g, kTwiceSqrt2OverPi * g * fma(splat(0.044715f) * g, g, splat(1.0f)));
}

void run_glu(const luce_glu_args &a, const Worker &worker) {
  const F32 most = splat(a.limit > 0 ? a.limit : __builtin_inff());
  const auto bounded = [=](F32 up) { return min(max(up, -most), most); };
  if (a.activation == LUCE_SILU) {
    for_each(a.gate, a.up, a.out, a.n_rows, worker, [=](F32 gate, F32 up) {
      const F32 g = min(gate, most);
      return times_sigmoid(g, g) * bounded(up);
    });
  } else {
    for_each(a.gate, a.up, a.out, a.n_rows, worker,
             [=](F32 gate, F32 up) { return gelu_tanh(min(gate, most)) * bounded(up); });
  }
}

Verdict check_gate(const luce_gate_args &a) {
  if (!is_f32(a.x) || !is_f32(a.gate) || !is_f32(a.out)) return unsupported("all tensors are F32, contiguous along D");
  if (!same_shape(a.x, a.out)) return bad("x and out have one shape");
  if (a.function != LUCE_GATE_SIGMOID && a.function != LUCE_GATE_SOFTPLUS) return unsupported("no such gate function");
  if (a.gate.ne[0] != a.x.ne[0] && a.gate.ne[0] != 1) return bad("a head has D gates or one");
  return a.gate.ne[1] == a.x.ne[1] && a.gate.ne[2] == a.x.ne[2] ? Verdict{} : bad("x and gate have H heads, n rows");
}

void run_gate(const luce_gate_args &a, const Worker &worker) {
  const int64_t D = a.x.ne[0], H = a.x.ne[1];
  const Range mine = share(true_rows(a.n_rows, a.x.ne[2]) * H, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const float *x = row<const float>(a.x, u % H, u / H), *gate = row<const float>(a.gate, u % H, u / H);
    float *out = row<float>(a.out, u % H, u / H);
    for (int64_t k = 0; k < D; k += kLanes) {
      const int64_t n = D - k < kLanes ? D - k : kLanes;
      const F32 g = a.gate.ne[0] == 1 ? splat(*gate) : load_first<F32>(gate + k, n);
      const F32 v = load_first<F32>(x + k, n);
      store_first(out + k, a.function == LUCE_GATE_SIGMOID ? times_sigmoid(v, g) : v * softplus(g), n);
    }
  }
}

void run_softcap(const luce_softcap_args &a, const Worker &worker) {
  const float cap = a.cap;
  for_each(a.x, a.x, a.out, a.n_rows, worker, [cap](F32 x, F32) { return cap * tanh(x / cap); });
}

}  // namespace

LUCE_KERNEL(add, check_add, run_add)
LUCE_KERNEL(scale, check_scale, run_scale)
LUCE_KERNEL(glu, check_glu, run_glu)
LUCE_KERNEL(gate, check_gate, run_gate)
LUCE_KERNEL(softcap, check_softcap, run_softcap)

}  // namespace luce::LUCE_ISA
