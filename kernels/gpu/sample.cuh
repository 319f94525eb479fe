// sample.cuh: what the two kernels of sample.cu share: the workspace, and the best token so far.
#pragma once

#include "kernel.h"
#include "philox.cuh"

namespace luce {

constexpr int kIds = 4096;  // of a block: the sums of e^x are the same however rows come together

// What sample_blocks tells sample_row of each block of each row.
struct BlockPart {
  double score;      // of the best token, for a row whose draw needs no more than that
  float top, total;  // of the logits as they came: the largest, and the sum of e^(logit - top)
  float adjusted_top;
  int32_t token;      // -1: none
  int32_t is_broken;  // a NaN, or +inf, before mask, bias and penalties
  int32_t is_adjusted_broken;
};

inline int64_t count_id_blocks(int64_t V) {
  return (V + kIds - 1) / kIds;
}

// Parts of all rows, then for each row its logits after mask, bias and penalties.
inline int64_t sample_workspace(const luce_sample_args &a) {
  const int64_t V = a.logits.ne[0], m = a.logits.ne[1];
  return m * (count_id_blocks(V) * static_cast<int64_t>(sizeof(BlockPart)) + (V + 1) / 2 * 8);
}

LUCE_DEVICE int id_blocks(const luce_sample_args &a) {
  return static_cast<int>((a.logits.ne[0] + kIds - 1) / kIds);
}
LUCE_DEVICE BlockPart *parts_of(const luce_sample_args &a, int i) {
  return static_cast<BlockPart *>(a.workspace.data) + i * id_blocks(a);
}
LUCE_DEVICE float *adjusted_of(const luce_sample_args &a, int i) {
  BlockPart *end = static_cast<BlockPart *>(a.workspace.data) + a.logits.ne[1] * id_blocks(a);
  return reinterpret_cast<float *>(end) + i * ((a.logits.ne[0] + 1) / 2 * 2);
}

LUCE_DEVICE const luce_sample_row &sample_row_of(const luce_sample_args &a, int i) {
  return list<luce_sample_row>(a.rows)[i];
}

// Neither mask, nor bias, nor penalties: the logits are used as they came.
LUCE_DEVICE bool is_plain(const luce_sample_row &r) {
  return r.mask < 0 && r.slot < 0 && r.bias_begin >= r.bias_end;
}
// The draw is among all tokens that are allowed.
LUCE_DEVICE bool is_wide(const luce_sample_row &r, int64_t V) {
  return r.temperature <= 0 || ((r.top_k <= 0 || r.top_k >= V) && r.typical_p >= 1 && r.top_p >= 1 && r.min_p <= 0);
}

// The best token: the highest score, among equals the smallest id.
struct Best {
  double score;
  int token;

  LUCE_DEVICE void consider(double other_score, int other) {
    if (other >= 0 && (token < 0 || other_score > score || (other_score == score && other < token))) {
      score = other_score;
      token = other;
    }
  }
};

LUCE_DEVICE Best nobody() {
  return {-INFINITY, -1};
}

// Over a block; every thread has it. `room` is shared, one for each warp.
LUCE_DEVICE Best best_of_block(Best best, Best *room) {
  const auto of_warp = [](Best b) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      b.consider(shuffle_xor(b.score, lanes), shuffle_xor(b.token, lanes));
    }
    return b;
  };
  return over_block(best, room, of_warp, [](Best a, const Best &b) {
    a.consider(b.score, b.token);
    return a;
  });
}

}  // namespace luce
