// attention_join.cuh: the splits of a row joined, for heads of 64, 128 or 256 values.
//
// What joins them runs once for each row and KV head, when all else has ended: its code is in no cache by then, so it
// is short, and what is under way lies in shared memory.
#pragma once

#include "attention.cuh"

namespace luce {

constexpr int kJoinSplits = 8, kJoinWidth = 64;  // splits of a stage; values of a head that a warp joins
constexpr int kJoinBytes = kJoinSplits * kJoinWidth * 4;

// Called by whole blocks of kAttentionThreads that have put their splits of a row and KV head into the workspace: the
// last one to come joins all of them, in order. `memory` is shared, kStages of kJoinBytes for each warp.
template <int D, int G, int kStages>
LUCE_DEVICE void join_splits(const AttentionArgs &a, int i, int h, int n_own, uint4 *memory) {
  constexpr int kWarps = kAttentionThreads / kLanes, kHeld = (kMostSplits + kLanes - 1) / kLanes;
  __shared__ float2 shares[kWarps][kHeld * kLanes];  // of each split, its sum and what it counts for
  if (!is_last_to_come(a, i, h, n_own)) return;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  uint8_t *const ring = reinterpret_cast<uint8_t *>(memory) + warp * kStages * kJoinBytes;
#pragma unroll 1
  for (int item = warp; item < G * D / kJoinWidth; item += kWarps) {
    const int head = h * G + item / (D / kJoinWidth), first_d = item % (D / kJoinWidth) * kJoinWidth;
    const float *const parts = partial_of(a, i, head, 0);
    const auto part = [&](int split) { return parts + split * (D + kPartialValues); };
    int stage = 0, next = 0;
    const auto bring = [&] {
#pragma unroll
      for (int k = 0; k < kJoinSplits; k += 2) {
        const int split = next + k + lane / 16;
        if (split >= n_own) break;
        copy_async(ring + stage * kJoinBytes + k * kJoinWidth * 4 + lane * 16,
                   part(split) + kPartialValues + first_d + lane % 16 * 4);
      }
      commit_copies();
      next += kJoinSplits;
      stage = stage + 1 < kStages ? stage + 1 : 0;
    };
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < kStages; ++k) bring();
    float tops[kHeld], sums[kHeld], most = -INFINITY, total = 0, y[2] = {};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const float *from = part(min(lane + k * kLanes, n_own - 1));
      tops[k] = load_fresh(from), sums[k] = load_fresh(from + 1);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) most = fmaxf(most, tops[k]);
    most = largest_of_warp(most);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) shares[warp][lane + k * kLanes] = {sums[k], share_of(tops[k], sums[k], most)};
#pragma unroll 1
    for (int first = 0; first < n_own; first += kJoinSplits) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
      const uint8_t *const values = ring + stage * kJoinBytes + 8 * lane;
#pragma unroll
      for (int k = 0; k < kJoinSplits; ++k) {
        const float2 share = shares[warp][first + k];
        const float2 value = *reinterpret_cast<const float2 *>(values + k * kJoinWidth * 4);
        if (first + k >= n_own) continue;
        total = fmaf(share.x, share.y, total);
        y[0] = fmaf(value.x, share.y, y[0]);
        y[1] = fmaf(value.y, share.y, y[1]);
      }
      __syncwarp();
      bring();
    }
    const float factor = last_factor(a, head, most, total);
    float *const to = a.out_of(head, i) + first_d + 2 * lane;
    to[0] = y[0] * factor, to[1] = y[1] * factor;
  }
}

}  // namespace luce
