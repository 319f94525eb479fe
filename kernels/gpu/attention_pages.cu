// attention_pages.cu: attention for the shapes that models have: pages of 32 cells in F16 or BF16, keys and values of
// 64, 128 or 256, up to eight heads to a KV head. What else there is, attention.cu does.
//
// A block takes a split of eight pages, a warp a page: all its pages are under way at once. A lane has a cell while
// scores are made, so that a softmax is over lanes and nothing else passes between them, and D / 32 values of the
// output while values are added. The pages are joined in order, as attention_merge joins the splits.

#include "attention.cuh"

namespace luce {
namespace {

constexpr int kWarps = kSplitCells / kLanes;  // and pages of a split
constexpr int kAhead = 16;                    // loads of keys under way

LUCE_DEVICE float2 to_floats(__half2 x) {
  return __half22float2(x);
}
LUCE_DEVICE float2 to_floats(__nv_bfloat162 x) {
  return __bfloat1622float2(x);
}

// n values from p on, 2 n bytes at once.
template <class Pair, int n>
LUCE_DEVICE void load_values(const uint8_t *p, float (&x)[n]) {
  alignas(2 * n) Pair pairs[n / 2];
  if constexpr (n == 2) {
    pairs[0] = *reinterpret_cast<const Pair *>(p);
  } else if constexpr (n == 4) {
    *reinterpret_cast<uint2 *>(pairs) = *reinterpret_cast<const uint2 *>(p);
  } else {
    *reinterpret_cast<uint4 *>(pairs) = *reinterpret_cast<const uint4 *>(p);
  }
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const float2 both = to_floats(pairs[i]);
    x[2 * i] = both.x, x[2 * i + 1] = both.y;
  }
}

template <class Pair, int D, int G>
LUCE_DEVICE void attend(const luce_attention_args &a, uint32_t *fault) {
  constexpr int kOwn = D / kLanes;
  __shared__ float q[G][D], weights[kWarps][kLanes][G], tops[kWarps][G], totals[kWarps][G];
  extern __shared__ float outs[];  // [kWarps][G][D]
  begin();
  const int h = blockIdx.y, i = blockIdx.z, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  if (i >= true_rows(a.n_rows, a.q.ne[2])) return;
  const int n_splits = static_cast<int>((a.page_table.ne[0] + kWarps - 1) / kWarps);
  const Viewer viewer(a, i);
  const int last = viewer.last_cell(fault);
  if (last < 0) return;
  const int n_pages = last / kLanes + 1;
  if (static_cast<int>(blockIdx.x) * kWarps >= n_pages) return;
  for (int u = threadIdx.x; u < G * D; u += blockDim.x)
    q[u / D][u % D] = row<const float>(a.q, h * G + u / D, i)[u % D];

  for (int split = blockIdx.x; split * kWarps < n_pages; split += gridDim.x) {
    __syncthreads();
    const int j = split * kWarps + warp, page = j < n_pages ? viewer.page_table()[j] : -1;
    const bool is_there = page >= 0 && page < a.cell_pos.ne[1];
    if (page != -1 && !is_there) set_fault(fault, LUCE_FAULT_PAGE);
    const bool seen = is_there && viewer.sees(j * kLanes + lane, row<const int32_t>(a.cell_pos, page)[lane], fault);
    const unsigned any = __ballot_sync(kAllLanes, seen);
    float top[G], o[G][kOwn] = {};
    if (any == 0) {
      if (lane == 0) {
        for (int g = 0; g < G; ++g) tops[warp][g] = -INFINITY, totals[warp][g] = 0;
      }
    } else {
      float s[G] = {};
      if (seen) {
        const uint8_t *k = cell(a.k_pages, lane, h, page), *v = cell(a.v_pages, lane, h, page);
#pragma unroll
        for (int line = 0; line < 2 * D; line += kLineBytes) prefetch(v + line);
#pragma unroll kAhead
        for (int d = 0; d < D; d += 8) {
          float x[8];
          load_values<Pair>(k + 2 * d, x);
#pragma unroll
          for (int g = 0; g < G; ++g) {
#pragma unroll
            for (int c = 0; c < 8; ++c) s[g] = fmaf(q[g][d + c], x[c], s[g]);
          }
        }
      }
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float x = seen ? logit_of(s[g], a.scale, a.softcap) : -INFINITY;
        top[g] = largest_of_warp(x);
        const float weight = seen ? expf(x - top[g]) : 0.0f, total = sum_of_warp(weight);
        weights[warp][lane][g] = weight;
        if (lane == 0) tops[warp][g] = top[g], totals[warp][g] = total;
      }
      __syncwarp();
#pragma unroll 16
      for (int c = 0; c < kLanes; ++c) {
        // A cell that is not seen may hold anything.
        if ((any >> c & 1) == 0) continue;
        float v[kOwn];
        load_values<Pair>(cell(a.v_pages, c, h, page) + 2 * kOwn * lane, v);
#pragma unroll
        for (int g = 0; g < G; ++g) {
          const float weight = weights[warp][c][g];
#pragma unroll
          for (int e = 0; e < kOwn; ++e) o[g][e] = fmaf(weight, v[e], o[g][e]);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int e = 0; e < kOwn; ++e) outs[(warp * G + g) * D + kOwn * lane + e] = o[g][e];
    }
    __syncthreads();
    for (int u = threadIdx.x; u < G * D; u += blockDim.x) {
      const int g = u / D, d = u % D;
      float most = tops[0][g];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) most = fmaxf(most, tops[w][g]);
      float total = 0, y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float share = totals[w][g] > 0 ? expf(tops[w][g] - most) : 0.0f;
        total = fmaf(totals[w][g], share, total);
        y = fmaf(outs[(w * G + g) * D + d], share, y);
      }
      float *to = partial_of(a, i, h * G + g, split, n_splits);
      if (d == 0) to[0] = most, to[1] = total;
      to[2 + d] = y;
    }
  }
}

}  // namespace

#define LUCE_ATTEND(name, Pair, D, G)                                                                         \
  LUCE_GLOBAL(attention_##name##_##D##_##G)(const __grid_constant__ luce_attention_args a, uint32_t *fault) { \
    attend<Pair, D, G>(a, fault);                                                                             \
  }
#define LUCE_ATTENDS(name, Pair, D) \
  LUCE_ATTEND(name, Pair, D, 1)     \
  LUCE_ATTEND(name, Pair, D, 2)     \
  LUCE_ATTEND(name, Pair, D, 3)     \
  LUCE_ATTEND(name, Pair, D, 4)     \
  LUCE_ATTEND(name, Pair, D, 8)
LUCE_ATTENDS(f16, __half2, 64)
LUCE_ATTENDS(f16, __half2, 128)
LUCE_ATTENDS(f16, __half2, 256)
LUCE_ATTENDS(bf16, __nv_bfloat162, 64)
LUCE_ATTENDS(bf16, __nv_bfloat162, 128)
LUCE_ATTENDS(bf16, __nv_bfloat162, 256)

PagesKernel pages_kernel(const luce_attention_args &a) {
  const int64_t D = a.q.ne[0], G = a.q.ne[1] / a.k_pages.ne[2];
  const auto is_aligned = [](const luce_tensor &t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.nb[1] % 16 == 0 && t.nb[2] % 16 == 0 && t.nb[3] % 16 == 0;
  };
  if (a.cell_pos.ne[0] != kLanes || a.v_pages.ne[0] != D || a.k_pages.type != a.v_pages.type) return {-1, 0};
  if ((a.k_pages.type != LUCE_F16 && a.k_pages.type != LUCE_BF16) || !is_aligned(a.k_pages) || !is_aligned(a.v_pages)) {
    return {-1, 0};
  }
  const int size = D == 64 ? 0 : D == 128 ? 1 : D == 256 ? 2 : -1;
  const int heads = G >= 1 && G <= 4 ? static_cast<int>(G) - 1 : G == 8 ? 4 : -1;
  if (size < 0 || heads < 0) return {-1, 0};
  const int first = a.k_pages.type == LUCE_F16 ? kernel_attention_f16_64_1 : kernel_attention_bf16_64_1;
  return {first + 5 * size + heads, kWarps * G * D * static_cast<int64_t>(sizeof(float))};
}

}  // namespace luce
