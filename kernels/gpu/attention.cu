// attention.cu: attention over a paged cache, for decode, draft trees and prefill, any head size and cache type;
// attention_pages.cu is faster where it can.
//
// A block takes a row, a KV head with the heads that read it, and splits of the row's sequence, one after the other. A
// split is reduced tile by tile of 32 cells; the last block of a row and KV head then joins the splits in order. So a
// row's bits depend neither on its company nor on where its pages lie.

#include "attention.cuh"
#include "ops.h"

namespace luce {
namespace {

constexpr int kThreads = kAttentionThreads, kWarps = kThreads / kLanes;
constexpr int kCells = kLanes;  // of a tile: a lane has one of them in the softmax
constexpr int64_t kMostSharedBytes = 200 << 10;
constexpr int64_t kSharedOfMultiprocessor = 220 << 10;
constexpr int kBlocksPerMultiprocessor = 4;  // where shared memory is enough

int64_t heads_per_kv(const luce_attention_args &a) {
  return a.q.ne[1] / a.k_pages.ne[2];
}

// Floats of shared memory: q, keys, values, scores, output, and for each head top, total and shrink.
int64_t shared_bytes(const luce_attention_args &a) {
  const int64_t G = heads_per_kv(a), D = a.q.ne[0], Dv = a.v_pages.ne[0];
  return 4 * (G * D + kCells * (D + 1) + kCells * Dv + G * kCells + G * Dv + 3 * G);
}

Verdict check(const luce_attention_args &a) {
  if (a.cells.data != nullptr || a.lse.data != nullptr) return unsupported("no kernel for cells or lse");
  const Verdict verdict = check_attention(a);
  if (verdict.status != LUCE_OK || shared_bytes(a) <= kMostSharedBytes) return verdict;
  return unsupported("a tile and the heads that read it exceed shared memory");
}

int64_t workspace(const luce_attention_args &a) {
  return a.q.ne[2] * a.q.ne[1] * count_splits(a) * (a.v_pages.ne[0] + kPartialValues) * 4;
}

void launch(const luce_attention_args &a, Launcher &launcher) {
  const PagesKernel pages = pages_kernel(a, launcher.most_shared);
  const bool by_pages = pages.id >= 0;
  const int id = by_pages ? pages.id : kernel_attention;
  const int64_t bytes = by_pages ? pages.shared_bytes : shared_bytes(a);
  const int64_t n = a.q.ne[2], n_kv = a.k_pages.ne[2], fitting = kSharedOfMultiprocessor / (bytes + (8 << 10));
  const int64_t per_sm = fitting < 1 ? 1 : fitting < kBlocksPerMultiprocessor ? fitting : kBlocksPerMultiprocessor;
  // A block whose row ends before its first split leaves at once; one whose row is long takes every grid.x-th.
  const int64_t n_splits = count_splits(a), wanted = blocks_of(per_sm * launcher.n_multiprocessors, n * n_kv);
  const int64_t most_rows = kArrivals / n_kv;
  AttentionArgs args = flat_attention(a, launcher.arrivals);
  for (int64_t first = 0; first < n; first += most_rows) {
    const int64_t n_rows = n - first < most_rows ? n - first : most_rows;
    args.first_row = static_cast<int32_t>(first);
    launcher(id,
             dim3(static_cast<unsigned>(wanted < n_splits ? wanted : n_splits), static_cast<unsigned>(n_kv),
                  static_cast<unsigned>(n_rows)),
             kThreads, bytes, args);
  }
}

struct Shared {
  LUCE_DEVICE Shared(float *memory, int G, int D, int Dv) {
    q = memory;
    k = q + G * D;
    v = k + kCells * (D + 1);
    p = v + kCells * Dv;
    o = p + G * kCells;
    top = o + G * Dv;
    total = top + G;
    shrink = total + G;
  }

  float *q, *k, *v, *p, *o, *top, *total, *shrink;
};

// The last block to come joins the splits of a row and KV head, in order.
LUCE_DEVICE void join_splits(const AttentionArgs &a, int i, int h, int n_own) {
  constexpr int kHeads = kAttentionThreads / kLanes, kStep = 64;  // that are joined at once
  __shared__ float tops[kHeads], totals[kHeads][kStep], shares[kHeads][kStep];
  const int G = a.n_heads / a.n_kv, Dv = a.Dv;
  if (!is_last_to_come(a, i, h, n_own)) return;
  for (int g0 = 0; g0 < G; g0 += kHeads) {
    const int n_heads = min(kHeads, G - g0), warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    const auto part = [&](int g, int split) { return partial_of(a, i, h * G + g0 + g, split); };
    __syncthreads();
    if (warp < n_heads) {
      float most = -INFINITY;
      for (int s = lane; s < n_own; s += kLanes) most = fmaxf(most, load_fresh(part(warp, s)));
      most = largest_of_warp(most);
      if (lane == 0) tops[warp] = most;
    }
    for (int u0 = 0; u0 < n_heads * Dv; u0 += kAttentionThreads) {
      const int u = u0 + static_cast<int>(threadIdx.x), g = u / Dv, d = u % Dv;
      float y = 0, total = 0;
      for (int first = 0; first < n_own; first += kStep) {
        const int n = min(kStep, n_own - first);
        __syncthreads();
        for (int e = threadIdx.x; e < n_heads * n; e += kAttentionThreads) {
          const float *from = part(e / n, first + e % n);
          const float sum = load_fresh(from + 1);
          totals[e / n][e % n] = sum;
          shares[e / n][e % n] = share_of(load_fresh(from), sum, tops[e / n]);
        }
        __syncthreads();
        if (g >= n_heads) continue;
        const float *from = part(g, first) + kPartialValues + d;
#pragma unroll 8
        for (int s = 0; s < n; ++s) {
          total = fmaf(totals[g][s], shares[g][s], total);
          y = fmaf(load_fresh(from + s * (Dv + kPartialValues)), shares[g][s], y);
        }
      }
      if (g < n_heads) a.out_of(h * G + g0 + g, i)[d] = y * last_factor(a, h * G + g0 + g, tops[g], total);
    }
  }
}

}  // namespace

AttentionArgs flat_attention(const luce_attention_args &a, uint32_t *arrivals) {
  const auto i32 = [](const luce_tensor &t) { return static_cast<const int32_t *>(t.data); };
  const auto small = [](int64_t n) { return static_cast<int32_t>(n); };
  return {.q = static_cast<const float *>(a.q.data),
          .out = static_cast<float *>(a.out.data),
          .workspace = static_cast<float *>(a.workspace.data),
          .k_pages = static_cast<const uint8_t *>(a.k_pages.data),
          .v_pages = static_cast<const uint8_t *>(a.v_pages.data),
          .n_rows = a.n_rows,
          .row_seq = i32(a.row_seq),
          .row_cell = i32(a.row_cell),
          .row_pos = i32(a.row_pos),
          .page_table = i32(a.page_table),
          .cell_pos = i32(a.cell_pos),
          .parents = i32(a.parents),
          .seq_past = i32(a.seq_past),
          .sinks = static_cast<const float *>(a.sinks.data),
          .arrivals = arrivals,
          .q_row = a.q.nb[2],
          .out_row = a.out.nb[2],
          .k_page = a.k_pages.nb[3],
          .v_page = a.v_pages.nb[3],
          .q_head = small(a.q.nb[1]),
          .out_head = small(a.out.nb[1]),
          .k_cell = small(a.k_pages.nb[1]),
          .k_head = small(a.k_pages.nb[2]),
          .v_cell = small(a.v_pages.nb[1]),
          .v_head = small(a.v_pages.nb[2]),
          .table_row = small(a.page_table.nb[1]),
          .pos_page = small(a.cell_pos.nb[1]),
          .first_row = 0,
          .bound = small(a.q.ne[2]),
          .n_heads = small(a.q.ne[1]),
          .n_kv = small(a.k_pages.ne[2]),
          .D = small(a.q.ne[0]),
          .Dv = small(a.v_pages.ne[0]),
          .k_type = a.k_pages.type,
          .v_type = a.v_pages.type,
          .page_size = small(a.cell_pos.ne[0]),
          .n_pages = small(a.cell_pos.ne[1]),
          .n_seqs = small(a.page_table.ne[1]),
          .n_places = small(a.page_table.ne[0]),
          .n_splits = small(count_splits(a)),
          .window = a.window,
          .scale = a.scale,
          .softcap = a.softcap};
}

LUCE_GLOBAL(attention)(const __grid_constant__ AttentionArgs a, uint32_t *fault) {
  extern __shared__ float memory[];
  __shared__ int seen[kCells];
  begin();
  const int h = blockIdx.y, i = a.first_row + blockIdx.z, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Viewer viewer(a, i);
  if (!viewer.is_there()) return;
  const int G = a.n_heads / a.n_kv, D = a.D, Dv = a.Dv, page_size = a.page_size;
  const int per_split = page_size >= kSplitCells ? 1 : kSplitCells / page_size;
  const int last = viewer.last_cell(fault);
  if (last < 0) return put_nothing(a, i, h);
  const int n_pages = last / page_size + 1, n_own = (n_pages + per_split - 1) / per_split;
  if (static_cast<int>(blockIdx.x) >= n_own) return;
  const Shared s(memory, G, D, Dv);
  for (int u = threadIdx.x; u < G * D; u += kThreads) s.q[u] = a.q_of(h * G + u / D, i)[u % D];

  for (int split = blockIdx.x; split < n_own; split += gridDim.x) {
    __syncthreads();
    for (int u = threadIdx.x; u < G * Dv; u += kThreads) s.o[u] = 0;
    for (int g = threadIdx.x; g < G; g += kThreads) s.top[g] = -INFINITY, s.total[g] = 0;
    for (int j = split * per_split; j < min((split + 1) * per_split, n_pages); ++j) {
      const int page = viewer.page(j, fault);
      if (page < 0) continue;
      for (int first = 0; first < page_size; first += kCells) {
        const int n_cells = min(kCells, page_size - first);
        __syncthreads();
        if (threadIdx.x < kCells) {
          const int c = first + threadIdx.x;
          seen[threadIdx.x] =
              static_cast<int>(threadIdx.x) < n_cells && viewer.sees(j * page_size + c, a.position_of(c, page), fault);
        }
        __syncthreads();
        // A cell that nobody sees may hold anything: it becomes 0.
        for (int c = warp; c < n_cells; c += kWarps) {
          const uint8_t *k = a.key(first + c, h, page), *v = a.value(first + c, h, page);
          const bool is_seen = seen[c];
          for (int d = lane; d < D; d += kLanes) {
            s.k[c * (D + 1) + d] = is_seen ? cell_value(a.k_type, k, d) : 0.0f;
          }
          for (int d = lane; d < Dv; d += kLanes) s.v[c * Dv + d] = is_seen ? cell_value(a.v_type, v, d) : 0.0f;
        }
        __syncthreads();
        for (int g = warp; g < G; g += kWarps) {
          float x = -INFINITY;
          if (seen[lane]) {
            float product = 0;
            for (int d = 0; d < D; ++d) product = fmaf(s.q[g * D + d], s.k[lane * (D + 1) + d], product);
            x = logit_of(product, a.scale, a.softcap);
          }
          const float most = fmaxf(s.top[g], largest_of_warp(x));
          const float weight = seen[lane] ? expf(x - most) : 0.0f, sum = sum_of_warp(weight);
          s.p[g * kCells + lane] = weight;
          __syncwarp();
          if (lane == 0) {
            s.shrink[g] = most > -INFINITY ? expf(s.top[g] - most) : 1.0f;
            s.total[g] = s.total[g] * s.shrink[g] + sum;
            s.top[g] = most;
          }
        }
        __syncthreads();
        for (int u = threadIdx.x; u < G * Dv; u += kThreads) {
          const int g = u / Dv, d = u % Dv;
          float y = s.o[u] * s.shrink[g];
          for (int c = 0; c < n_cells; ++c) y = fmaf(s.p[g * kCells + c], s.v[c * Dv + d], y);
          s.o[u] = y;
        }
      }
    }
    __syncthreads();
    for (int g = warp; g < G; g += kWarps) {
      float *to = partial_of(a, i, h * G + g, split);
      if (lane == 0) to[0] = s.top[g], to[1] = s.total[g];
      for (int d = lane; d < Dv; d += kLanes) to[kPartialValues + d] = s.o[g * Dv + d];
    }
  }
  join_splits(a, i, h, n_own);
}

}  // namespace luce

LUCE_OP(attention, check, launch, workspace)
