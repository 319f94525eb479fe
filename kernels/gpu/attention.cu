// attention.cu: attention over a paged cache, for decode, draft trees and prefill, any head size and cache type;
// attention_pages.cu is faster where it can.
//
// A block takes a row, a KV head with the heads that read it, and splits of the row's sequence, one after the other. A
// split is reduced tile by tile of 32 cells; attention_merge then joins the splits in order. So a row's bits depend
// neither on its company nor on where its pages lie.

#include "attention.cuh"
#include "ops.h"

namespace luce {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kCells = kLanes;  // of a tile: a lane has one of them in the softmax
constexpr int64_t kMostSharedBytes = 200 << 10;
constexpr int kBlocksPerMultiprocessor = 4;

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
  return a.q.ne[2] * a.q.ne[1] * count_splits(a) * (a.v_pages.ne[0] + 2) * 4;
}

void launch(const luce_attention_args &a, Launcher &launcher) {
  const int64_t n = a.q.ne[2], n_kv = a.k_pages.ne[2], most = kBlocksPerMultiprocessor * launcher.n_multiprocessors;
  // A block whose row ends before its first split leaves at once; one whose row is long takes every grid.x-th.
  const int64_t n_splits = count_splits(a), wanted = (most + n * n_kv - 1) / (n * n_kv);
  const dim3 grid(static_cast<unsigned>(wanted < n_splits ? wanted : n_splits), static_cast<unsigned>(n_kv),
                  static_cast<unsigned>(n));
  const PagesKernel pages = pages_kernel(a);
  if (pages.id >= 0) {
    launcher(pages.id, grid, kSplitCells, pages.shared_bytes, a);
  } else {
    launcher(kernel_attention, grid, kThreads, shared_bytes(a), a);
  }
  const int64_t Dv = a.v_pages.ne[0];
  launcher(kernel_attention_merge, dim3(static_cast<unsigned>(a.q.ne[1]), static_cast<unsigned>(n)),
           static_cast<int>((Dv + kLanes - 1) / kLanes * kLanes), 0, a);
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

}  // namespace

LUCE_GLOBAL(attention)(const __grid_constant__ luce_attention_args a, uint32_t *fault) {
  extern __shared__ float memory[];
  __shared__ int seen[kCells];
  begin();
  const int h = blockIdx.y, i = blockIdx.z, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  if (i >= true_rows(a.n_rows, a.q.ne[2])) return;
  const int G = static_cast<int>(a.q.ne[1] / a.k_pages.ne[2]), D = static_cast<int>(a.q.ne[0]);
  const int Dv = static_cast<int>(a.v_pages.ne[0]), page_size = static_cast<int>(a.cell_pos.ne[0]);
  const int per_split = page_size >= kSplitCells ? 1 : kSplitCells / page_size;
  const int n_splits = static_cast<int>((a.page_table.ne[0] + per_split - 1) / per_split);
  const Viewer viewer(a, i);
  const int last = viewer.last_cell(fault);
  if (last < 0) return;
  const int n_pages = last / page_size + 1;
  const Shared s(memory, G, D, Dv);
  for (int u = threadIdx.x; u < G * D; u += kThreads) s.q[u] = row<const float>(a.q, h * G + u / D, i)[u % D];

  for (int split = blockIdx.x; split * per_split < n_pages; split += gridDim.x) {
    __syncthreads();
    for (int u = threadIdx.x; u < G * Dv; u += kThreads) s.o[u] = 0;
    for (int g = threadIdx.x; g < G; g += kThreads) s.top[g] = -INFINITY, s.total[g] = 0;
    for (int j = split * per_split; j < min((split + 1) * per_split, n_pages); ++j) {
      const int page = viewer.page_table()[j];
      if (page < 0 || page >= a.cell_pos.ne[1]) {
        if (page != -1) set_fault(fault, LUCE_FAULT_PAGE);
        continue;
      }
      for (int first = 0; first < page_size; first += kCells) {
        const int n_cells = min(kCells, page_size - first);
        __syncthreads();
        if (threadIdx.x < kCells) {
          const int c = first + threadIdx.x;
          seen[threadIdx.x] = static_cast<int>(threadIdx.x) < n_cells &&
                              viewer.sees(j * page_size + c, row<const int32_t>(a.cell_pos, page)[c], fault);
        }
        __syncthreads();
        // A cell that nobody sees may hold anything: it becomes 0.
        for (int c = warp; c < n_cells; c += kWarps) {
          const uint8_t *k = cell(a.k_pages, first + c, h, page), *v = cell(a.v_pages, first + c, h, page);
          const bool is_seen = seen[c];
          for (int d = lane; d < D; d += kLanes) {
            s.k[c * (D + 1) + d] = is_seen ? cell_value(a.k_pages.type, k, d) : 0.0f;
          }
          for (int d = lane; d < Dv; d += kLanes) s.v[c * Dv + d] = is_seen ? cell_value(a.v_pages.type, v, d) : 0.0f;
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
      float *to = partial_of(a, i, h * G + g, split, n_splits);
      if (lane == 0) to[0] = s.top[g], to[1] = s.total[g];
      for (int d = lane; d < Dv; d += kLanes) to[2 + d] = s.o[g * Dv + d];
    }
  }
}

// A block joins the splits of one head of one row; a thread has one value.
LUCE_GLOBAL(attention_merge)(const __grid_constant__ luce_attention_args a, uint32_t *fault) {
  begin();
  const int h = blockIdx.x, i = blockIdx.y, d = threadIdx.x;
  if (i >= true_rows(a.n_rows, a.q.ne[2])) return;
  const int page_size = static_cast<int>(a.cell_pos.ne[0]);
  const int per_split = page_size >= kSplitCells ? 1 : kSplitCells / page_size;
  const int n_splits = static_cast<int>((a.page_table.ne[0] + per_split - 1) / per_split);
  const Viewer viewer(a, i);
  const int last = viewer.last_cell(fault);
  const int n_pages = last < 0 ? 0 : last / page_size + 1;
  if (d >= a.v_pages.ne[0]) return;
  float top = -INFINITY, total = 0, y = 0;
  for (int split = 0; split * per_split < n_pages; ++split) {
    const float *from = partial_of(a, i, h, split, n_splits);
    if (from[1] == 0) continue;
    const float most = fmaxf(top, from[0]);
    const float old_share = expf(top - most), new_share = expf(from[0] - most);
    total = total * old_share + from[1] * new_share;
    y = y * old_share + from[2 + d] * new_share;
    top = most;
  }
  float weight = total > 0 ? 1 / total : 0.0f;
  if (total > 0 && a.sinks.data != nullptr) {
    const float sink = list<float>(a.sinks)[h], most = fmaxf(top, sink), share = expf(top - most);
    weight = share / (total * share + expf(sink - most));
  }
  row<float>(a.out, h, i)[d] = y * weight;
}

}  // namespace luce

LUCE_OP(attention, check, launch, workspace)
