// attention_row.cuh: attention of one row, for the shapes of attention_pages.cu and with its bits; before it the norms
// and the turning of queries and keys, and the row's cell: with one row each of these ops alone is shorter than the
// time between two launches.
//
// A block takes a KV head and splits of eight pages, a warp a page: a lane has a cell while scores are made, and D / 32
// values of the output while values are added. Keys go from memory to registers: nothing is shared between cells. What
// earlier kernels do not make (pages, positions, most of the cells) is asked for before the block waits for them.
#pragma once

#include <type_traits>

#include "attention.cuh"
#include "row_source.cuh"

namespace luce {

// The heads of queries, keys and values of a row, normed and turned; the row's cell, and what it sees.
struct RowAttention {
  AttentionArgs a;
  const float *k, *v, *q_norm, *k_norm, *angles;  // null: none
  const int32_t *slots, *positions;
  uint8_t *k_cells, *v_cells;
  float *q_made, *k_made;  // where the turned heads are wanted too; null: nowhere
  int32_t *cell_positions;
  int32_t k_row_head, v_row_head;  // bytes from head to head of k and v
  float q_eps, k_eps;
  int32_t n_rot, mode;
};

constexpr int kRowWarps = kAttentionThreads / kLanes;  // and pages of a split

template <int D, int G>
struct alignas(16) RowRoom {
  float q[G][D];
  float out[kRowWarps][G * D];  // before that the key of the row's cell
  float weights[kRowWarps][kLanes][G], tops[kRowWarps][G], totals[kRowWarps][G], shares[kRowWarps][G], most[G];
};
constexpr int64_t row_room_bytes(int64_t D, int64_t G) {
  return (4 * (G * D + kRowWarps * (G * D + kLanes * G + 3 * G) + G) + 15) / 16 * 16;
}

// A warp: a head of D values to shared memory, normed and turned. All that it reads it asks for at once.
template <int D>
LUCE_DEVICE void prepare_head(const RowAttention &s, const float *from, const float *norm, float eps, float *to) {
  constexpr int kFours = D / 4 <= kLanes ? 1 : 2, kTurns = D / 2 / kLanes;
  const int lane = threadIdx.x % kLanes, half = s.n_rot / 2;
  float4 x[kFours], weight[kFours];
  float2 angles[kTurns];
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    const int k = 4 * (lane + j * kLanes);
    x[j] = four_of(from, k, D);
    weight[j] = norm ? four_of(norm, k, D) : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int p = lane + i * kLanes;
    angles[i] = p < half ? reinterpret_cast<const float2 *>(s.angles)[p] : float2{1, 0};
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kFours; ++j) sum += sum_of_warp(add_squares(0, x[j]));
  const float scale = eps >= 0 ? scale_of_norm(sum, D, eps) : 1.0f;
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    const int k = 4 * (lane + j * kLanes);
    const float4 y = normed(x[j], scale);
    if (k < D) *reinterpret_cast<float4 *>(to + k) = norm ? times(y, weight[j]) : y;
  }
  __syncwarp();
  const bool is_neox = s.mode == LUCE_ROPE_NEOX;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int p = lane + i * kLanes, a = is_neox ? p : 2 * p, b = is_neox ? p + half : 2 * p + 1;
    if (p >= half) break;
    const float v = to[a], w = to[b];
    to[a] = v * angles[i].x - w * angles[i].y;
    to[b] = v * angles[i].y + w * angles[i].x;
  }
  __syncwarp();
}

LUCE_DEVICE const float *head_at(const float *x, int h, int bytes) {
  return reinterpret_cast<const float *>(reinterpret_cast<uintptr_t>(x) + int64_t{h} * bytes);
}

LUCE_DEVICE void put_pair(__half2 *to, float2 x) {
  *to = __floats2half2_rn(x.x, x.y);
}
LUCE_DEVICE void put_pair(__nv_bfloat162 *to, float2 x) {
  *to = __floats2bfloat162_rn(x.x, x.y);
}

// A warp: the key, in shared memory, and the row's value of KV head h, into their cell.
template <class Pair, int D>
LUCE_DEVICE void write_cell(const RowAttention &s, int h, int slot, const float *key) {
  const int lane = threadIdx.x % kLanes, page = slot / kLanes, c = slot % kLanes;
  const float *value = head_at(s.v, h, s.v_row_head);
  Pair *const k_cell = reinterpret_cast<Pair *>(s.k_cells + (s.a.key(c, h, page) - s.a.k_pages));
  Pair *const v_cell = reinterpret_cast<Pair *>(s.v_cells + (s.a.value(c, h, page) - s.a.v_pages));
#pragma unroll
  for (int i = lane; i < D / 2; i += kLanes) {
    put_pair(k_cell + i, reinterpret_cast<const float2 *>(key)[i]);
    put_pair(v_cell + i, reinterpret_cast<const float2 *>(value)[i]);
  }
  if (lane == 0) {
    char *const positions = reinterpret_cast<char *>(s.cell_positions) + int64_t{page} * s.a.pos_page;
    reinterpret_cast<int32_t *>(positions)[c] = s.positions[0];
  }
  __syncwarp();
}

// A split as a warp sees it: its page, and the lanes whose cells are seen.
struct RowPage {
  int page;
  unsigned any;
};

// The row is no tree, so it sees the cells up to its own that its window leaves. They are asked for.
LUCE_APART RowPage look(const RowAttention &s, const Viewer &viewer, int split, int n_pages, int slot,
                        uint32_t *fault) {
  const AttentionArgs &a = s.a;
  const int lane = threadIdx.x % kLanes, j = split * kRowWarps + threadIdx.x / kLanes, c = j * kLanes + lane;
  const int page = j < n_pages ? viewer.page(j, fault) : -1;
  bool sees = page >= 0 && c <= viewer.own_cell;
  if (sees) {
    const int position = page * kLanes + lane == slot ? s.positions[0] : a.position_of(lane, page);
    const uint32_t distance = static_cast<uint32_t>(viewer.position) - static_cast<uint32_t>(position);
    sees = distance < (a.window > 0 ? static_cast<uint32_t>(a.window) : 0x80000000u);
  }
  const RowPage own = {page, __ballot_sync(kAllLanes, sees)};
  if (own.any == 0) return own;
#pragma unroll 1
  for (int line = 0; line < 2 * a.D; line += kLineBytes) {
    prefetch(a.key(lane, blockIdx.y, page) + line);
    prefetch(a.value(lane, blockIdx.y, page) + line);
  }
  return own;
}

LUCE_APART float capped(float x, float softcap) {
  return softcap * tanhf(x / softcap);
}

// Blocks (x, h) take every gridDim.x-th split of KV head h; the last of them to come to its end joins all.
template <class Pair, int D, int G>
LUCE_DEVICE void attend_row(const RowAttention &s, uint32_t *fault) {
  static_assert(sizeof(RowRoom<D, G>) == row_room_bytes(D, G));
  constexpr int kOwn = D / kLanes, kPieces = D / 8;      // values of a lane; 16 bytes of a key
  constexpr int kKeys = 8, kValues = D == 256 ? 8 : 16;  // pieces of a key, and cells of values, in registers at once
  using Value = std::conditional_t<kOwn == 2, uint32_t, std::conditional_t<kOwn == 4, uint2, uint4>>;
  extern __shared__ uint4 memory[];
  auto &room = *reinterpret_cast<RowRoom<D, G> *>(memory);
  const AttentionArgs &a = s.a;
  const int h = blockIdx.y, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Viewer viewer(a, 0);
  const int last = viewer.is_there() ? viewer.last_cell(fault) : -1, n_pages = last / kLanes + (last >= 0);
  const int n_splits = last < 0 ? 1 : last / kSplitCells + 1, first = static_cast<int>(blockIdx.x);
  int slot = s.slots[0];
  if (slot != -1 && (slot < 0 || slot >= kLanes * a.n_pages)) {
    set_fault(fault, LUCE_FAULT_PAGE);
    slot = -1;
  }
  RowPage next = look(s, viewer, first, n_pages, slot, fault);
  wait_for_previous();
  let_next_start();
  if (!viewer.is_there() || first >= n_splits) return;
#pragma unroll 1
  for (int split = first; split < n_splits; split += gridDim.x) {
    const RowPage own = next;
    if (split > first) __syncthreads();
    // Whoever looks at the row's own cell writes it, and the first split in case nobody does: the same bytes. Queries
    // are prepared by other warps.
    const bool writes = slot >= 0 && (own.page == slot / kLanes || (split == 0 && warp == 0));
    const int after = (viewer.own_cell / kLanes + 1) % kRowWarps;
#pragma unroll 1
    for (int g = writes ? -1 : (warp - after + kRowWarps) % kRowWarps; g < G;
         g = g < 0 ? (warp - after + kRowWarps) % kRowWarps : g + kRowWarps) {
      float *const to = g < 0 ? room.out[warp] : room.q[g];
      const float *from = g < 0 ? head_at(s.k, h, s.k_row_head) : a.q_of(h * G + g, 0);
      prepare_head<D>(s, from, g < 0 ? s.k_norm : s.q_norm, g < 0 ? s.k_eps : s.q_eps, to);
      if (g < 0) write_cell<Pair, D>(s, h, slot, to);
      float *const made = g < 0 ? s.k_made : s.q_made;
      if (made == nullptr || split > 0) continue;
      for (int d = lane; d < D; d += kLanes) made[(g < 0 ? h : h * G + g) * D + d] = to[d];
    }
    if (split + gridDim.x < n_splits) next = look(s, viewer, split + gridDim.x, n_pages, slot, fault);
    uint4 keys[kKeys] = {};
    const uint4 *key = reinterpret_cast<const uint4 *>(a.key(lane, h, max(own.page, 0)));
    if (own.any != 0) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) keys[i] = key[i];
    }
    __syncthreads();
    float o[G][kOwn] = {};
    if (own.any == 0) {
      if (lane < G) room.tops[warp][lane] = -INFINITY, room.totals[warp][lane] = 0;
    } else {
      float sums[G] = {};
#pragma unroll 1
      for (int begin = 0; begin < kPieces; begin += kKeys) {
        if (begin > 0) {
#pragma unroll
          for (int i = 0; i < kKeys; ++i) keys[i] = key[begin + i];
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          float x[8];
          values_of<Pair>(keys[i], x);
#pragma unroll
          for (int g = 0; g < G; ++g) {
            const float *q = room.q[g] + 8 * (begin + i);
#pragma unroll
            for (int c = 0; c < 8; ++c) sums[g] = fmaf(q[c], x[c], sums[g]);
          }
        }
      }
      const bool seen = own.any >> lane & 1;
#pragma unroll
      for (int g = 0; g < G; ++g) {
        // A cell that is not seen may hold anything.
        float x = seen ? sums[g] * a.scale : -INFINITY;
        if (a.softcap > 0 && seen) x = capped(x, a.softcap);
        const float top = largest_of_warp(x);
        const float weight = seen ? expf(x - top) : 0.0f, total = sum_of_warp(weight);
        room.weights[warp][lane][g] = weight;
        if (lane == 0) room.tops[warp][g] = top, room.totals[warp][g] = total;
      }
      __syncwarp();
      const uint8_t *value = a.value(0, h, own.page) + 2 * kOwn * lane;
#pragma unroll 1
      for (int begin = 0; begin < kLanes; begin += kValues) {
        Value values[kValues];
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
          values[c] =
              own.any >> (begin + c) & 1 ? *reinterpret_cast<const Value *>(value + (begin + c) * a.v_cell) : Value{};
        }
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
          float v[kOwn];
          values_of<Pair>(values[c], v);
#pragma unroll
          for (int g = 0; g < G; ++g) {
            const float weight = room.weights[warp][begin + c][g];
#pragma unroll
            for (int e = 0; e < kOwn; ++e) o[g][e] = fmaf(weight, v[e], o[g][e]);
          }
        }
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int e = 0; e < kOwn; ++e) room.out[warp][g * D + kOwn * lane + e] = o[g][e];
    }
    __syncthreads();
    // What each page counts for; then the pages joined, in order.
    if (threadIdx.x < kRowWarps * G) {
      const int w = threadIdx.x / G, g = threadIdx.x % G;
      float most = room.tops[0][g];
#pragma unroll
      for (int v = 1; v < kRowWarps; ++v) most = fmaxf(most, room.tops[v][g]);
      room.shares[w][g] = share_of(room.tops[w][g], room.totals[w][g], most);
      if (w == 0) room.most[g] = most;
    }
    __syncthreads();
#pragma unroll 1
    for (int u = threadIdx.x; u < G * D; u += kAttentionThreads) {
      const int g = u / D, d = u % D;
      float total = 0, y = 0;
#pragma unroll
      for (int w = 0; w < kRowWarps; ++w) {
        total = fmaf(room.totals[w][g], room.shares[w][g], total);
        y = fmaf(room.out[w][g * D + d], room.shares[w][g], y);
      }
      if (n_splits == 1) {
        a.out_of(h * G + g, 0)[d] = y * last_factor(a, h * G + g, room.most[g], total);
        continue;
      }
      float *to = partial_of(a, 0, h * G + g, split);
      if (d == 0) to[0] = room.most[g], to[1] = total;
      to[2 + d] = y;
    }
  }
  if (n_splits > 1) join_splits(a, 0, h, n_splits);
}

}  // namespace luce
