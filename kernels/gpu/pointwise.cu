// pointwise.cu: ops that treat each value alone: add, glu, softcap. A thread makes one value of one row.

#include "check.h"
#include "math.cuh"

namespace luce {
namespace {

constexpr int kThreads = 256;

template <class Op>
LUCE_DEVICE void for_each(const luce_tensor &a, const luce_tensor &b, const luce_tensor &out, const int32_t *n_rows,
                          Op op) {
  begin();
  const int i = blockIdx.y;
  const int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= true_rows(n_rows, out.ne[1]) || k >= out.ne[0]) return;
  row<float>(out, i)[k] = op(row<const float>(a, i)[k], row<const float>(b, i)[k]);
}

Verdict check_shapes(const luce_tensor &a, const luce_tensor &b, const luce_tensor &out) {
  if (!is_f32(a) || !is_f32(b) || !is_f32(out)) return unsupported("all tensors are F32, contiguous along ne[0]");
  return same_shape(a, out) && same_shape(b, out) ? Verdict{} : bad("all tensors have one shape");
}

dim3 grid_of(const luce_tensor &out) {
  return dim3(blocks_of(out.ne[0], kThreads), static_cast<unsigned>(out.ne[1]));
}

Verdict check_add(const luce_add_args &a) {
  return check_shapes(a.a, a.b, a.out);
}
void launch_add(const luce_add_args &a, Launcher &launcher) {
  launcher(kernel_add, grid_of(a.out), kThreads, 0, a);
}

Verdict check_glu(const luce_glu_args &a) {
  if (a.activation != LUCE_SILU && a.activation != LUCE_GELU_TANH)
    return unsupported("activation is SILU or GELU_TANH");
  return check_shapes(a.gate, a.up, a.out);
}
void launch_glu(const luce_glu_args &a, Launcher &launcher) {
  launcher(kernel_glu, grid_of(a.out), kThreads, 0, a);
}

Verdict check_softcap(const luce_softcap_args &a) {
  if (!(a.cap > 0)) return bad("cap is positive");
  return check_shapes(a.x, a.x, a.out);
}
void launch_softcap(const luce_softcap_args &a, Launcher &launcher) {
  launcher(kernel_softcap, grid_of(a.out), kThreads, 0, a);
}

}  // namespace

LUCE_GLOBAL(add)(const __grid_constant__ luce_add_args a, uint32_t *) {
  for_each(a.a, a.b, a.out, a.n_rows, [](float x, float y) { return x + y; });
}

LUCE_GLOBAL(glu)(const __grid_constant__ luce_glu_args a, uint32_t *) {
  const bool is_silu = a.activation == LUCE_SILU;
  for_each(a.gate, a.up, a.out, a.n_rows,
           [=](float g, float up) { return (is_silu ? times_sigmoid(g, g) : gelu_tanh(g)) * up; });
}

LUCE_GLOBAL(softcap)(const __grid_constant__ luce_softcap_args a, uint32_t *) {
  const float cap = a.cap;
  for_each(a.x, a.x, a.out, a.n_rows, [=](float x, float) { return cap * tanhf(x / cap); });
}

}  // namespace luce

LUCE_OP(add, check_add, launch_add)
LUCE_OP(glu, check_glu, launch_glu)
LUCE_OP(softcap, check_softcap, launch_softcap)
