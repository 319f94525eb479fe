// attention_row.cuh: attention of one row, for the shapes of attention_pages.cu and with its bits; before it the norms
// and the turning of queries and keys, and the row's cell: with one row each of these ops alone is shorter than the
// time between two launches.
//
// A block takes a KV head and splits of one or more rounds of eight pages, a warp a page: a lane has a cell while
// scores are made, and D / 32 values of the output while values are added. Cells come through a ring in shared memory,
// from which each warp takes them at its own pace; the first ones are asked for before the block waits for earlier
// kernels: these make the row's own cell and no other.
#pragma once

#include "attention_feed.cuh"
#include "attention_join.cuh"
#include "row_source.cuh"

namespace luce {

// Of a block in shared memory, beside the rings.
template <int D, int G>
struct alignas(16) RowRoom {
  float q[G][D], key[D], value[D];
  float out[kRowWarps][G * D];
  float weights[kRowWarps][kLanes][G], tops[kRowWarps][G], totals[kRowWarps][G];
  Joined joined[G * D];
};
constexpr int64_t row_room_bytes(int64_t D, int64_t G) {
  return 4 * ((4 * G + 2) * D + kRowWarps * (G * D + kLanes * G + 2 * G));
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

LUCE_APART float capped(float x, float softcap) {
  return softcap * tanhf(x / softcap);
}

// For G query heads of a KV head. Of the blocks that have a split of these, the last to come to its end joins all.
template <class Pair, int D, int G>
LUCE_DEVICE void attend_share(const RowAttention &s, const RowShare &share, uint32_t *fault) {
  static_assert(sizeof(RowRoom<D, G>) == row_room_bytes(D, G));
  using Feed = RowFeed<D>;
  constexpr int kOwn = D / kLanes, kPieces = Feed::kPieces, kCells = kLanes / kPieces;  // values of a lane; of a piece
  extern __shared__ uint4 memory[];  // the rings of the warps, then what they share
  auto &room = *reinterpret_cast<RowRoom<D, G> *>(memory + row_ring_bytes(s.n_stages) / sizeof(uint4));
  const AttentionArgs &a = s.a;
  const int h = share.h, first_head = share.first_head, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Viewer viewer(a, 0);
  const int last = viewer.is_there() ? viewer.last_cell(fault) : -1, n_pages = last / kLanes + (last >= 0);
  const int n_rounds = last < 0 ? 1 : last / kSplitCells + 1, log_rounds = log_rounds_of(n_rounds),
            n_splits = ((n_rounds - 1) >> log_rounds) + 1;
  int slot = s.slots[0];
  if (slot != -1 && (slot < 0 || slot >= kLanes * a.n_pages)) {
    set_fault(fault, LUCE_FAULT_PAGE);
    slot = -1;
  }
  Feed feed(s, share, viewer, reinterpret_cast<uint8_t *>(memory) + warp * s.n_stages * kPieceBytes, slot, n_pages,
            log_rounds, fault);
#pragma unroll 1
  for (int i = 0; i < s.n_stages; ++i) feed.next();
  wait_for_previous();
  let_next_start();
  if (!viewer.is_there() || share.x >= n_splits) return;

  // The row's own key and value are put where its cell is copied to; the first block also writes the cell.
#pragma unroll 1
  for (int g = warp; g <= G; g += kRowWarps) {
    const bool is_key = g == G;
    float *const to = is_key ? room.key : room.q[g];
    if (is_key) {
      const float *value = head_at(s.v, h, s.v_row_head);
#pragma unroll
      for (int d = lane; d < D; d += kLanes) room.value[d] = value[d];
    }
    prepare_head<D>(s, is_key ? head_at(s.k, h, s.k_row_head) : a.q_of(first_head + g, 0), is_key ? s.k_norm : s.q_norm,
                    is_key ? s.k_eps : s.q_eps, to);
    if (share.x > 0 || (is_key && first_head % (a.n_heads / a.n_kv) != 0)) continue;
    if (is_key && slot >= 0) write_cell<Pair, D>(s, h, slot, room.key, room.value);
    float *const made = is_key ? s.k_made : s.q_made;
    if (made == nullptr) continue;
#pragma unroll
    for (int d = lane; d < D; d += kLanes) made[(is_key ? h : first_head + g) * D + d] = to[d];
  }
  __syncthreads();

#pragma unroll 1
  for (int number = 0;; ++number) {
    const int round = share.round_of(number, log_rounds), last_of_split = round | ((1 << log_rounds) - 1);
    if (round >= n_rounds) break;
    const bool is_first = round >> log_rounds << log_rounds == round,
               is_last = round == min(last_of_split, n_rounds - 1);
    const unsigned any = feed.seen_of(number);
    const int own = number == feed.own ? slot % kLanes : -1;
    float o[G][kOwn] = {}, sums[G] = {}, tops[G], totals[G] = {};
#pragma unroll
    for (int g = 0; g < G; ++g) tops[g] = -INFINITY;
#pragma unroll 1
    for (int i = 0; i < 2 * kPieces; ++i) {
      uint8_t *const piece = feed.wait();
      if (any != 0 && i < kPieces) {
        if (own >= 0) put_own_key<Pair>(piece, own, room.key + i * kPieceValues);
#pragma unroll 2
        for (int j = 0; j < kPieceValues / 8; ++j) {
          float x[8];
          values_of<Pair>(*reinterpret_cast<const uint4 *>(piece + lane * 128 + (j ^ lane % 8) * 16), x);
#pragma unroll
          for (int g = 0; g < G; ++g) {
            const float *q = room.q[g] + i * kPieceValues + 8 * j;
#pragma unroll
            for (int c = 0; c < 8; ++c) sums[g] = fmaf(q[c], x[c], sums[g]);
          }
        }
      } else if (any != 0) {
        if (i == kPieces) {
          // A cell that is not seen may hold anything. Heads go side by side: a step of one is there when the others
          // have made theirs.
          const bool is_seen = any >> lane & 1;
#pragma unroll
          for (int g = 0; g < G; ++g) {
            sums[g] = is_seen ? sums[g] * a.scale : -INFINITY;
            if (a.softcap > 0 && is_seen) sums[g] = capped(sums[g], a.softcap);
            tops[g] = sums[g];
          }
#pragma unroll
          for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
#pragma unroll
            for (int g = 0; g < G; ++g) tops[g] = fmaxf(tops[g], shuffle_xor(tops[g], lanes));
          }
#pragma unroll
          for (int g = 0; g < G; ++g) {
            totals[g] = is_seen ? expf(sums[g] - tops[g]) : 0.0f;
            room.weights[warp][lane][g] = totals[g];
          }
#pragma unroll
          for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
#pragma unroll
            for (int g = 0; g < G; ++g) totals[g] += shuffle_xor(totals[g], lanes);
          }
          __syncwarp();
        }
        // Nobody looks at a cell that is not seen.
        const unsigned there = any >> ((i - kPieces) * kCells);
        const float (*const weights)[G] = room.weights[warp] + (i - kPieces) * kCells;
        uint8_t *const values = piece + 2 * kOwn * lane;
        if (own >= 0 && own / kCells == i - kPieces) {
#pragma unroll
          for (int e = 0; e < kOwn; e += 2) {
            put_pair(reinterpret_cast<Pair *>(values + own % kCells * 2 * D + 2 * e),
                     *reinterpret_cast<const float2 *>(room.value + kOwn * lane + e));
          }
        }
        const auto add = [&](int c) {
          float v[kOwn];
          load_values<Pair>(values + c * 2 * D, v);
#pragma unroll
          for (int g = 0; g < G; ++g) {
#pragma unroll
            for (int e = 0; e < kOwn; ++e) o[g][e] = fmaf(weights[c][g], v[e], o[g][e]);
          }
        };
#pragma unroll 1
        for (int c = 0; c < kCells; c += 4) {
          if ((there >> c & 15) == 15) {
#pragma unroll
            for (int e = 0; e < 4; ++e) add(c + e);
            continue;
          }
#pragma unroll 1
          for (int e = c; e < c + 4; ++e) {
            if (there >> e & 1) add(e);
          }
        }
      }
      __syncwarp();
      feed.next();
    }
    if (number > 0) __syncthreads();
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (lane == 0) room.tops[warp][g] = tops[g], room.totals[warp][g] = totals[g];
#pragma unroll
      for (int e = 0; e < kOwn; ++e) room.out[warp][g * D + kOwn * lane + e] = o[g][e];
    }
    __syncthreads();
    // What each page counts for; then the pages joined, in order. A warp has values of one head.
#pragma unroll 1
    for (int u = threadIdx.x; u < G * D; u += kAttentionThreads) {
      const int g = u / D, d = u % D, page = lane % kRowWarps;
      const float top = room.tops[page][g], sum = room.totals[page][g];
      float most = top, total = 0, y = 0;
#pragma unroll
      for (int lanes = kRowWarps / 2; lanes > 0; lanes /= 2) most = fmaxf(most, shuffle_xor(most, lanes));
      const float share = share_of(top, sum, most);
#pragma unroll
      for (int w = 0; w < kRowWarps; ++w) {
        const float share_of_page = __shfl_sync(kAllLanes, share, w);
        total = fmaf(room.totals[w][g], share_of_page, total);
        y = fmaf(room.out[w][u], share_of_page, y);
      }
      Joined joined;
      if (!is_first) joined = room.joined[u];
      joined.add(most, total, y);
      if (!is_last) {
        room.joined[u] = joined;
      } else if (n_splits == 1) {
        a.out_of(first_head + g, 0)[d] = joined.y * last_factor(a, first_head + g, joined.most, joined.total);
      } else {
        float *to = partial_of(a, 0, first_head + g, round >> log_rounds);
        if (d == 0) *reinterpret_cast<float4 *>(to) = {joined.most, joined.total, 0, 0};
        to[kPartialValues + d] = joined.y;
      }
    }
  }
  if (n_splits > 1) join_splits<D, G, 4>(a, 0, first_head / G, n_splits, memory);
}

// Blocks (x, h) take every gridDim.x-th split of KV head h. Where a row is so short that there are blocks enough, each
// query head has its own: cells are few then, and what a block does one after the other is what it takes.
template <class Pair, int D, int G>
LUCE_DEVICE void attend_row(const RowAttention &s, uint32_t *fault) {
  constexpr int kMostCells = 1024;
  const int x = blockIdx.x, h = blockIdx.y, n_x = gridDim.x, cell = s.a.row_cell[0];
  if (G > 1 && cell >= 0 && cell < kMostCells && (cell / kSplitCells + 1) * G <= n_x) {
    if (x < n_x / G * G) attend_share<Pair, D, 1>(s, {x / G, n_x / G, h, h * G + x % G}, fault);
  } else {
    attend_share<Pair, D, G>(s, {x, n_x, h, h * G}, fault);
  }
}

}  // namespace luce
