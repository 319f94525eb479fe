// matmul.cu: out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i], weight [K, N], x [K, n], out [N, n]: what
// is supported, and which kernels do it. Quantised weights are packed and meet Q8_A; F32, F16 and BF16 lie in rows and
// meet F32.

#include "check.h"
#include "pack.cuh"

namespace luce {

void launch_matmul_rows(const luce_matmul_args &a, Launcher &launcher);

namespace {

void launch_matmul_packed(const luce_matmul_args &a, Launcher &launcher) {
  constexpr int kTokens[] = {1, 8, 16, 32, 64};
  const int64_t n = a.x.ne[1];
  int size = 0;
  while (size < 4 && n > kTokens[size]) ++size;
  int id = -1;  // check() has refused other types
  switch (a.weight.type) {
#define LUCE_CASE(name, type)             \
  case type:                              \
    id = kernel_matmul_##name##_0 + size; \
    break;
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
  }
  launcher(id, dim3(blocks_of(a.weight.ne[1], kTileRows), blocks_of(n, kTokens[size])), kMatmulThreads, 0, a);
}

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
  if (values == 0) return unsupported("weight is of no weight type");
  if (K % values != 0) return bad("a row of the weight is not whole blocks");
  if (a.weight.layout != LUCE_PACKED) return unsupported("a quantised weight is packed first, by luce_pack");
  if (a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  if (a.x.nb[1] % 8 != 0) return unsupported("rows of Q8_A begin at multiples of 8 bytes");
  return {};
}

void launch(const luce_matmul_args &a, Launcher &launcher) {
  (is_float(a.weight.type) ? launch_matmul_rows : launch_matmul_packed)(a, launcher);
}

}  // namespace
}  // namespace luce

LUCE_OP(matmul, check, launch)
