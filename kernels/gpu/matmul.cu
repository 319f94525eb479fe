// matmul.cu: out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i], weight [K, N], x [K, n], out [N, n]: what
// is supported, and which kernels do it. Quantised weights are packed and meet Q8_A; F32, F16 and BF16 lie in rows and
// meet F32.
//
// Matrices of one type that meet the same x are one launch. Where x is one row, so are the ops that make it: a norm or
// a glu, and its quantisation.

#include "kernel.h"
#include "matmul_some.cuh"
#include "overlap.h"

namespace luce {
namespace {

// Blocks that stay on each multiprocessor, of quantised and of float weights.
constexpr int kOneBlocks = 4, kRowBlocks = 2;
constexpr int64_t kMostMade = kHeld * kRowStep;  // values of a row that every block makes for itself

// Adds the next of the calls to the launch; false: it is of another kind than the first, or waits for one before it.
bool add_part(MatmulArgs &to, const luce_call *calls) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  const luce_matmul_args &a = *static_cast<const luce_matmul_args *>(calls[to.n_parts].args);
  if (a.weight.type != first.weight.type || a.x.data != first.x.data || a.x.ne[0] != first.x.ne[0] ||
      a.x.ne[1] != first.x.ne[1] || a.x.nb[1] != first.x.nb[1] || a.n_rows != first.n_rows) {
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
  return true;
}

// The first of the calls, and those after it that meet the same x, which is there.
MatmulArgs join(const luce_call *calls, int n_calls) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  MatmulArgs all = {static_cast<const uint8_t *>(first.x.data),
                    first.x.nb[1],
                    first.n_rows,
                    static_cast<int32_t>(first.x.ne[1]),
                    static_cast<int32_t>(first.x.ne[0]),
                    0,
                    {},
                    {nullptr, nullptr, nullptr, -1, 0, nullptr, nullptr}};
  while (all.n_parts < n_calls && all.n_parts < kMostParts && calls[all.n_parts].op == LUCE_OP_matmul &&
         add_part(all, calls)) {
    continue;
  }
  return all;
}

// The kernel for one row, and its shared memory; id -1: check() has refused this type.
struct OneRowKernel {
  int id;
  int64_t shared_bytes;
};
OneRowKernel one_row_kernel(int32_t type, int64_t K) {
  switch (type) {
#define LUCE_CASE(name, type) \
  case type:                  \
    return {kernel_matmul_##name##_0, OneRow<type>::shared_bytes(K)};
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return {row_kernel(type), row_shared_bytes(K)};
  }
}

// Whether there is one row, and the kernel for it can run here.
bool fits_one_row(const luce_matmul_args &a, const Launcher &launcher) {
  constexpr int64_t kStaticBytes = 2 << 10;
  if (a.x.ne[1] != 1 || (is_float(a.weight.type) && !is_one_wide_row(a))) return false;
  return one_row_kernel(a.weight.type, a.x.ne[0]).shared_bytes + kStaticBytes <= launcher.most_shared;
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
  if (values == 0) return unsupported("the CUDA library has no kernels for such a weight");
  if (K % values != 0) return bad("a row of the weight is not whole blocks");
  if (a.weight.layout != LUCE_PACKED) return unsupported("a quantised weight is packed first, by luce_pack");
  if (a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  if (a.x.nb[1] % 8 != 0) return unsupported("rows of Q8_A begin at multiples of 8 bytes");
  return {};
}

int launch(const luce_call *calls, int n_calls, Launcher &launcher) {
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(calls->args);
  if (is_float(first.weight.type) && !fits_one_row(first, launcher)) {
    launch_matmul_rows(first, launcher);
    return 1;
  }
  const MatmulArgs all = join(calls, n_calls);
  launch_matmul(first, all, launcher);
  return all.n_parts;
}

// ---- the row and what makes it ----

// The ops that make a row, and the tensor that it becomes.
struct Making {
  RowSource source = {nullptr, nullptr, nullptr, -1, 0, nullptr, nullptr};
  int n_ops = 0;
  const luce_tensor *row = nullptr;
  const int32_t *n_rows = nullptr;

  // With an op that makes floats.
  void begin(const luce_tensor &out, const int32_t *rows) {
    source.made = static_cast<float *>(out.data);
    row = &out;
    n_rows = rows;
    n_ops = 1;
  }
};

Making read_making(const luce_call *calls, int n_calls) {
  Making m;
  if (calls->op == LUCE_OP_rms_norm) {
    const auto &a = *static_cast<const luce_rms_norm_args *>(calls->args);
    if (a.x.ne[1] != 1 || a.x.ne[2] != 1) return m;
    m.source.x = static_cast<const float *>(a.x.data);
    m.source.weight = static_cast<const float *>(a.weight.data);
    m.source.eps = a.eps;
    m.begin(a.out, a.n_rows);
  } else if (calls->op == LUCE_OP_glu) {
    const auto &a = *static_cast<const luce_glu_args *>(calls->args);
    if (a.out.ne[1] != 1) return m;
    m.source.x = static_cast<const float *>(a.gate.data);
    m.source.up = static_cast<const float *>(a.up.data);
    m.source.activation = a.activation;
    m.begin(a.out, a.n_rows);
  }
  if (n_calls <= m.n_ops || calls[m.n_ops].op != LUCE_OP_quantize) return m;
  const auto &a = *static_cast<const luce_quantize_args *>(calls[m.n_ops].args);
  if (a.x.ne[1] != 1) return m;
  if (m.n_ops == 0) {
    m.source.x = static_cast<const float *>(a.x.data);
    m.n_rows = a.n_rows;
  } else if (a.x.data != m.row->data || a.x.ne[0] != m.row->ne[0] || a.n_rows != m.n_rows) {
    return m;
  }
  m.source.quantized = static_cast<uint8_t *>(a.out.data);
  m.row = &a.out;
  ++m.n_ops;
  return m;
}

// The memory of a row of K values, or of a quantised one.
Span floats_of(const float *p, int64_t K) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + static_cast<uintptr_t>(p ? 4 * K : 0), 4 * K, LUCE_F32};
}
Span bytes_of(const uint8_t *p, int64_t K) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + static_cast<uintptr_t>(p ? K / 4 * 5 : 0), K / 4 * 5, LUCE_Q8_A};
}

}  // namespace

int plan_sourced(const luce_call *calls, int n_calls, const Launcher &launcher, MatmulArgs &to) {
  Making m = read_making(calls, n_calls);
  if (m.n_ops == 0 || n_calls <= m.n_ops || calls[m.n_ops].op != LUCE_OP_matmul) return 0;
  const luce_call *matmuls = calls + m.n_ops;
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(matmuls->args);
  const int64_t K = first.x.ne[0];
  if (K > kMostMade || first.x.data != m.row->data || K != m.row->ne[0] || first.x.ne[1] != 1 ||
      first.n_rows != m.n_rows)
    return 0;
  if (!fits_one_row(first, launcher)) return 0;
  for (const float *p : {m.source.x, m.source.up, m.source.weight, static_cast<const float *>(m.source.made)}) {
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return 0;
  }
  // Every block reads what the row is made from, while others write.
  const Span from[] = {floats_of(m.source.x, K), floats_of(m.source.up, K)};
  const auto is_read = [&](const Span &s) { return s.meets(from[0]) || s.meets(from[1]); };
  if (is_read(floats_of(m.source.made, K)) || is_read(bytes_of(m.source.quantized, K))) return 0;
  to = join(matmuls, n_calls - m.n_ops);
  for (int p = 0; p < to.n_parts; ++p) {
    const luce_matmul_args &a = *static_cast<const luce_matmul_args *>(matmuls[p].args);
    const Span out = span_of(a.out, 1), add = span_of(a.add, 1);
    const Span made = floats_of(m.source.made, K), quantized = bytes_of(m.source.quantized, K);
    if (is_read(out) || add.meets(made) || add.meets(quantized)) return 0;
    // Where an output goes, nobody wants what was there.
    if (out.meets(made)) m.source.made = nullptr;
    if (out.meets(quantized)) m.source.quantized = nullptr;
  }
  to.source = m.source;
  return m.n_ops + to.n_parts;
}

void launch_matmul(const luce_matmul_args &first, const MatmulArgs &all, Launcher &launcher) {
  const OneRowKernel one = one_row_kernel(first.weight.type, all.K);
  if (fits_one_row(first, launcher)) {
    const int most = (is_float(first.weight.type) ? kRowBlocks : kOneBlocks) * launcher.n_multiprocessors;
    launcher(one.id, dim3(all.n_tiles() < most ? all.n_tiles() : most), kMatmulThreads, one.shared_bytes, all);
    return;
  }
  launch_some(first.weight.type, all, launcher);
}

}  // namespace luce

LUCE_OP(matmul, check, launch)
