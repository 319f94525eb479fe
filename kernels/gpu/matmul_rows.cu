// matmul_rows.cu: F32, F16 or BF16 weights, as they lie in the file, times rows of F32.
//
// A warp makes one output for a few rows of x. A lane takes 16 bytes of every 512, in order, and the lanes' sums meet
// in a tree: the order over k is the same for any number of rows. Where rows do not begin at multiples of 16 bytes, a
// lane takes one value of every 32.

#include "matmul_floats.cuh"

namespace luce {
namespace {

constexpr int kWarps = 4;
constexpr int kAhead = 4;  // loads of weights under way

template <int type, int kTokens, int kValues>
LUCE_DEVICE void matmul(const luce_matmul_args &a) {
  using Value = typename Weight<type>::Value;
  constexpr int kStep = kLanes * kValues;
  let_next_start();
  const int lane = threadIdx.x % kLanes, j = blockIdx.x * kWarps + threadIdx.x / kLanes;
  const int K = static_cast<int>(a.weight.ne[0]), N = static_cast<int>(a.weight.ne[1]);
  const Value *weight = row<const Value>(a.weight, min(j, N - 1)) + lane * kValues;
  const int last = K - lane * kValues;  // pieces of this lane begin before it
  Piece<type, kValues> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i * kStep < last) ahead[i].load(weight + i * kStep);
  }
  wait_for_previous();

  const int first = blockIdx.y * kTokens, n = min(true_rows(a.n_rows, a.x.ne[1]) - first, kTokens);
  if (n <= 0 || j >= N) return;
  float acc[kTokens] = {};
  for (int k = 0; k < last; k += kAhead * kStep) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = k + i * kStep;
      if (at >= last) break;
      const Piece<type, kValues> piece = ahead[i];
      if (at + kAhead * kStep < last) ahead[i].load(weight + at + kAhead * kStep);
#pragma unroll
      for (int token = 0; token < kTokens; ++token) {
        if (token >= n) break;
        float x[kValues];
        load_x(row<const float>(a.x, first + token) + lane * kValues + at, x);
#pragma unroll
        for (int v = 0; v < kValues; ++v) acc[token] = fmaf(piece[v], x[v], acc[token]);
      }
    }
  }
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
    if (token >= n) break;
    float y = sum_of_warp(acc[token]);
    if (lane != 0) continue;
    if (a.bias.data) y += list<float>(a.bias)[j];
    if (a.add.data) y += row<const float>(a.add, first + token)[j];
    row<float>(a.out, first + token)[j] = y;
  }
}

bool is_aligned(const luce_tensor &t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.nb[1] % 16 == 0;
}

// The same for any number of rows: it depends on K alone, as buffers and files are laid out.
bool is_wide(const luce_matmul_args &a) {
  return a.weight.ne[0] % 8 == 0 && is_aligned(a.weight) && is_aligned(a.x);
}

}  // namespace

#define LUCE_MATMUL(name, type, tokens, values)                                                              \
  LUCE_GLOBAL(matmul_##name##_##tokens##_##values)(const __grid_constant__ luce_matmul_args a, uint32_t *) { \
    matmul<type, tokens, values>(a);                                                                         \
  }
#define LUCE_MATMULS(name, type, values) \
  LUCE_MATMUL(name, type, 4, values)     \
  LUCE_MATMUL(name, type, 8, values)     \
  LUCE_MATMUL(name, type, 4, 1)          \
  LUCE_MATMUL(name, type, 8, 1)
LUCE_MATMULS(f32, LUCE_F32, 4)
LUCE_MATMULS(f16, LUCE_F16, 8)
LUCE_MATMULS(bf16, LUCE_BF16, 8)

bool is_one_wide_row(const luce_matmul_args &a) {
  return a.x.ne[1] == 1 && is_wide(a);
}

int row_kernel(int32_t type) {
  return type == LUCE_F32 ? kernel_matmul_f32_row : type == LUCE_F16 ? kernel_matmul_f16_row : kernel_matmul_bf16_row;
}

void launch_matmul_rows(const luce_matmul_args &a, Launcher &launcher) {
  const int64_t n = a.x.ne[1];
  const int size = n <= 4 ? 0 : 1, tokens = n <= 4 ? 4 : 8;
  const int id = row_kernel(a.weight.type) + 1 + size + (is_wide(a) ? 0 : 2);  // in kernels.def they follow each other
  launcher(id, dim3(blocks_of(a.weight.ne[1], kWarps), blocks_of(n, tokens)), kWarps * kLanes, 0, a);
}

}  // namespace luce
