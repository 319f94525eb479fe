// matmul_rows.cu: F32, F16 or BF16 weights, as they lie in the file, times rows of F32.
//
// A warp makes one output for a few rows of x. A lane takes 16 bytes of every 512, in order, and the lanes' sums meet
// in a tree: the order over k is the same for any number of rows. Where rows do not begin at multiples of 16 bytes, a
// lane takes one value of every 32.
//
// For one row blocks stay, and weights come through a ring in shared memory, as in matmul_one.cu.

#include "matmul.cuh"

namespace luce {
namespace {

constexpr int kWarps = 4;
constexpr int kAhead = 4;  // loads of weights under way

template <int type>
struct Weight;
template <>
struct Weight<LUCE_F32> {
  using Value = float;
  LUCE_DEVICE static float to_float(float x) { return x; }
};
template <>
struct Weight<LUCE_F16> {
  using Value = __half;
  LUCE_DEVICE static float to_float(__half x) { return __half2float(x); }
};
template <>
struct Weight<LUCE_BF16> {
  using Value = __nv_bfloat16;
  LUCE_DEVICE static float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
};

// kValues of a row, and as floats.
template <int type, int kValues>
struct Piece {
  using Value = typename Weight<type>::Value;
  alignas(kValues * sizeof(Value)) Value values[kValues];

  LUCE_DEVICE void load(const Value *p) {
    if constexpr (kValues == 1) {
      values[0] = *p;
    } else {
      *reinterpret_cast<uint4 *>(values) = load_weights(reinterpret_cast<const uint4 *>(p));
    }
  }
  LUCE_DEVICE void read(const uint4 *shared) { *reinterpret_cast<uint4 *>(values) = *shared; }
  LUCE_DEVICE float operator[](int i) const { return Weight<type>::to_float(values[i]); }
};

template <int kValues>
LUCE_DEVICE void load_x(const float *p, float (&x)[kValues]) {
  if constexpr (kValues == 1) {
    x[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 v = *reinterpret_cast<const float4 *>(p + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  }
}

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

// The rows of a warp, tile after tile, on their way into its ring: each lane copies what it will multiply.
template <int type>
struct RowFeed {
  using Value = typename Weight<type>::Value;
  static constexpr int kValues = 16 / sizeof(Value), kStep = kLanes * kValues;
  static constexpr int kPieces = kRowStageBytes / (16 * kLanes), kStage = kPieces * kStep;  // of a lane; values

  const MatmulArgs &a;
  int lane, tile = blockIdx.x, k = 0;  // of the next copy
  const Value *weight = nullptr;

  LUCE_DEVICE RowFeed(const MatmulArgs &a, int lane) : a(a), lane(lane) { find(); }

  LUCE_DEVICE void next(uint4 *stage) {
    if (tile < a.n_tiles()) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int at = k + i * kStep + lane * kValues;
        if (at < a.K) copy_weights_async(stage + i * kLanes + lane, weight + at);
      }
      if ((k += kStage) >= a.K) {
        k = 0;
        tile += gridDim.x;
        find();
      }
    }
    commit_copies();
  }

 private:
  LUCE_DEVICE void find() {
    if (tile >= a.n_tiles()) return;
    const Place place(a, tile);
    const int j = min(place.tile * kRowTile + static_cast<int>(threadIdx.x) / kLanes, place.part->N - 1);
    weight = reinterpret_cast<const Value *>(place.part->weight + j * place.part->weight_stride);
  }
};

template <int type>
LUCE_DEVICE void matmul_row(const MatmulArgs &a) {
  using Feed = RowFeed<type>;
  extern __shared__ uint4 stages[];  // rings of the warps, then the row
  __shared__ float room[kRowTile];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  constexpr int kStage = kRowStageBytes / sizeof(uint4);
  uint4 *const ring = stages + warp * kRowStages * kStage;
  float *const x = reinterpret_cast<float *>(stages + kRowTile * kRowStages * kStage);
  Feed feed(a, lane);
#pragma unroll 1
  for (int i = 0; i < kRowStages; ++i) feed.next(ring + i * kStage);
  const RowMaker maker(a.source, a.K);
  wait_for_previous();
  let_next_start();

  const int n = true_rows(a.n_rows, a.bound);
  if (a.source.x == nullptr) {
    for (int k = 4 * threadIdx.x; k < a.K; k += kRowStep) copy_async(x + k, a.x + k * sizeof(float));
    commit_copies();
    wait_for_copies<0>();
  } else {
    const bool is_wanted = a.source.made && blockIdx.x == 0 && n > 0;
    maker.run(room, [&](int k, float4 v) {
      if (k >= a.K) return;
      *reinterpret_cast<float4 *>(x + k) = v;
      if (is_wanted) *reinterpret_cast<float4 *>(a.source.made + k) = v;
    });
  }
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < a.n_tiles(); tile += gridDim.x) {
    const Place place(a, tile);
    const int j = place.tile * kRowTile + warp;
    const bool puts = lane == 0 && j < place.part->N && n > 0;
    const Rest rest = puts ? Rest(*place.part, j, 0) : Rest();
    float acc = 0;
#pragma unroll 1
    for (int k = lane * Feed::kValues; k - lane * Feed::kValues < a.K; k += Feed::kStage) {
      wait_for_copies<kRowStages - 1>();
      Piece<type, Feed::kValues> pieces[Feed::kPieces];
#pragma unroll
      for (int i = 0; i < Feed::kPieces; ++i) pieces[i].read(ring + stage * kStage + i * kLanes + lane);
      feed.next(ring + stage * kStage);
      stage = stage + 1 < kRowStages ? stage + 1 : 0;
#pragma unroll
      for (int i = 0; i < Feed::kPieces; ++i) {
        const int at = k + i * Feed::kStep;
        if (at >= a.K) break;
        float values[Feed::kValues];
        load_x(x + at, values);
#pragma unroll
        for (int v = 0; v < Feed::kValues; ++v) acc = fmaf(pieces[i][v], values[v], acc);
      }
    }
    const float y = sum_of_warp(acc);
    if (puts) rest.put(*place.part, j, 0, y);
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
#define LUCE_MATMULS(name, type, values)                                                                        \
  LUCE_GLOBAL_WITHIN(matmul_##name##_row, kMatmulThreads, kFittingBlocks)(const __grid_constant__ MatmulArgs a, \
                                                                          uint32_t *) {                         \
    matmul_row<type>(a);                                                                                        \
  }                                                                                                             \
  LUCE_MATMUL(name, type, 4, values)                                                                            \
  LUCE_MATMUL(name, type, 8, values)                                                                            \
  LUCE_MATMUL(name, type, 4, 1)                                                                                 \
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
