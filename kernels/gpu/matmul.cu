// matmul.cu: out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i], weight [K, N], x [K, n], out [N, n]: what
// is supported, and which kernels do it. Quantised weights are packed and meet Q8_A; F32, F16 and BF16 lie in rows and
// meet F32.
//
// Matrices of one type that meet the same x are one launch. Where x is one row, so are the ops before and after them
// (matmul_one_plan.cu).

#include "kernel.h"
#include "matmul_some.cuh"
#include "overlap.h"

namespace luce {
namespace {

// Whether there is a kernel for one row and matrices of both types.
bool go_together(int32_t type, int32_t other) {
#define LUCE_PAIR(name, type_, also, other_) \
  if (type == type_ && other == other_) return true;
  LUCE_PAIRS(LUCE_PAIR)
#undef LUCE_PAIR
  return type == other;
}

// Adds the next of the calls to the launch; false: it is of another kind than the first, or waits for one before it.
bool add_part(MatmulArgs &to, const luce_call *calls, bool has_pairs) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  const luce_matmul_args &a = *static_cast<const luce_matmul_args *>(calls[to.n_parts].args);
  const int32_t last = to.n_of_type < to.n_parts ? to.other : to.type;  // types do not take turns
  const bool fits = a.weight.type == last || (has_pairs && last == to.type && go_together(last, a.weight.type));
  if (!fits || a.x.data != first.x.data || a.x.ne[0] != first.x.ne[0] || a.x.ne[1] != first.x.ne[1] ||
      a.x.nb[1] != first.x.nb[1] || a.n_rows != first.n_rows || (is_float(a.weight.type) && !is_one_wide_row(a))) {
    return false;
  }
  const Span add = span_of(a.add, 1), out = span_of(a.out, 1);
  for (int p = 0; p < to.n_parts; ++p) {
    const luce_matmul_args &before = *static_cast<const luce_matmul_args *>(calls[p].args);
    const Span out_before = span_of(before.out, 1);
    if (add.meets(out_before) || out.meets(out_before) || out.meets(span_of(before.add, 1))) return false;
  }
  const int n_before = to.n_parts == 0 ? 0 : to.n_tiles();
  const int n_tiles = static_cast<int>(blocks_of(a.weight.ne[1], is_float(a.weight.type) ? kRowTile : kTileRows));
  to.parts[to.n_parts++] = {static_cast<const uint8_t *>(a.weight.data),
                            static_cast<const float *>(a.bias.data),
                            static_cast<const float *>(a.add.data),
                            static_cast<float *>(a.out.data),
                            a.weight.nb[1],
                            a.add.nb[1],
                            a.out.nb[1],
                            static_cast<int32_t>(a.weight.ne[1]),
                            n_before + n_tiles};
  if (a.weight.type == to.type) {
    to.n_of_type = to.n_parts;
  } else {
    to.other = a.weight.type;
  }
  return true;
}

}  // namespace

MatmulArgs join_matmuls(const luce_call *calls, int n_calls, bool has_pairs) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  MatmulArgs all = {static_cast<const uint8_t *>(first.x.data),
                    first.x.nb[1],
                    first.n_rows,
                    static_cast<int32_t>(first.x.ne[1]),
                    static_cast<int32_t>(first.x.ne[0]),
                    0,
                    first.weight.type,
                    first.weight.type,
                    0,
                    {},
                    no_source(),
                    {},
                    0,
                    0};
  while (all.n_parts < n_calls && all.n_parts < kMostParts && calls[all.n_parts].op == LUCE_OP_matmul &&
         add_part(all, calls, has_pairs)) {
    continue;
  }
  return all;
}

namespace {

bool is_rows_of(const luce_tensor &t, int64_t width, int64_t n) {
  return t.type == LUCE_F32 && t.nb[0] == 4 && t.ne[0] == width && t.ne[1] == n;
}

Verdict check(const luce_matmul_args &a) {
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], n = a.x.ne[1];
  if (a.x.ne[0] != K) return bad("x is [K, n] for weight [K, N]");
  if (!is_rows_of(a.out, N, n)) return bad("out is F32 [N, n], its rows contiguous");
  if (a.bias.data && (a.bias.type != LUCE_F32 || a.bias.nb[0] != 4 || a.bias.ne[0] != N)) return bad("bias is F32 [N]");
  if (a.add.data && !is_rows_of(a.add, N, n)) return bad("add is F32 [N, n], its rows contiguous");
  if (is_float(a.weight.type)) {
    if (a.weight.layout != LUCE_ROWS) return bad("F32, F16 and BF16 weights are never packed");
    if (a.weight.nb[0] != (a.weight.type == LUCE_F32 ? 4 : 2)) return unsupported("rows of the weight are contiguous");
    if (a.x.type != LUCE_F32 || a.x.nb[0] != 4) return unsupported("such a weight meets F32 rows");
    return {};
  }
  const int values = block_values(a.weight.type);
  if (values == 0) return unsupported("the CUDA library has no kernels for such a weight");
  if (K % values != 0) return bad("a row of the weight is not whole blocks");
  if (a.weight.layout != LUCE_PACKED) return unsupported("a quantised weight is packed first, by luce_pack");
  if (a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  if (a.x.nb[1] % 8 != 0) return unsupported("rows of Q8_A begin at multiples of 8 bytes");
  return {};
}

int launch(const luce_call *calls, int n_calls, Launcher &launcher) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  const bool is_one = fits_one_row(first, launcher);
  if (is_float(first.weight.type) && !is_one) {
    launch_matmul_rows(first, launcher);
    return 1;
  }
  MatmulArgs all = is_one ? join_row(calls, n_calls, launcher) : join_matmuls(calls, n_calls, false);
  const int n_gate = is_one ? add_gate(all, calls, n_calls) : 0;
  launch_matmul(all, launcher);
  return all.n_parts + n_gate;
}

}  // namespace
}  // namespace luce

LUCE_OP(matmul, check, launch)
