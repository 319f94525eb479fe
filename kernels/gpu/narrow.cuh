// narrow.cuh: the tokens of a row of logits that top_k, typical_p, top_p and min_p leave, and the draw among them. A
// block does a row.
//
// Tokens are ordered by a key of 64 bits (the value, then the smaller id), so a set that was narrowed is told by the
// least key in it. That key is found digit by digit, from the counts or probabilities of each digit's tokens.
// Probabilities are added as whole numbers: in any order the sum is the same.
#pragma once

#include "sample.cuh"

namespace luce {

constexpr int kRowThreads = 1024, kRowWarps = kRowThreads / kLanes;
constexpr int kDigits = 256;

// Shared memory of a row's block.
struct Room {
  float floats[kRowWarps];
  double doubles[kRowWarps];
  Best bests[kRowWarps];
  unsigned counts[kDigits];
  unsigned long long weights[kDigits];
  unsigned long long left;  // weight that is wanted of the digit that was chosen
  int digit;
};

LUCE_DEVICE double sum_of_block(double x, double *room) {
  const auto of_warp = [](double y) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) y += shuffle_xor(y, lanes);
    return y;
  };
  return over_block(x, room, of_warp, [](double a, double b) { return a + b; });
}

// Larger values first, among equals the smaller id.
LUCE_DEVICE uint64_t key_of(float value, int id) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

// The finite logits of a row, narrowed.
struct Selection {
  const float *x;
  int V;
  uint64_t least = 0;          // key of a logit
  uint64_t least_typical = 0;  // key of how typical it is
  double log_total = 0, entropy = 0;

  LUCE_DEVICE Selection(const float *x, int V) : x(x), V(V) {}

  LUCE_DEVICE bool has(int id) const {
    return x[id] > -INFINITY && key_of(x[id], id) >= least && (least_typical == 0 || typical_key(id) >= least_typical);
  }
  LUCE_DEVICE uint64_t typical_key(int id) const {
    const double surprise = log_total - double{x[id]};
    return key_of(static_cast<float>(-fabs(surprise - entropy)), id);
  }

  LUCE_DEVICE void keep_first(int k, Room &room) {
    raise(least_of_first(k, [&](int id) { return key_of(x[id], id); }, [](int) { return 1ull; }, room));
  }

  // Softmax of what is left: its largest logit, and the sum of e^(logit - top).
  LUCE_DEVICE double add_up(float &top, Room &room) const {
    float most = -INFINITY;
    for (int id = threadIdx.x; id < V; id += kRowThreads) {
      if (has(id)) most = fmaxf(most, x[id]);
    }
    top = largest_of_block(most, room.floats);
    double total = 0;
    for (int id = threadIdx.x; id < V; id += kRowThreads) {
      if (has(id)) total += expf(x[id] - top);
    }
    return sum_of_block(total, room.doubles);
  }

  LUCE_DEVICE void keep_typical(float mass, Room &room) {
    float top;
    const double total = add_up(top, room);
    log_total = log(total) + double{top};
    double sum = 0;
    for (int id = threadIdx.x; id < V; id += kRowThreads) {
      if (has(id)) sum += double{expf(x[id] - top)} / total * (log_total - double{x[id]});
    }
    entropy = sum_of_block(sum, room.doubles);
    least_typical = least_of_first(
        whole(mass), [&](int id) { return typical_key(id); },
        [&](int id) { return whole(double{expf(x[id] - top)} / total); }, room);
  }

  LUCE_DEVICE void keep_top_p(float mass, Room &room) {
    float top;
    const double total = add_up(top, room);
    raise(least_of_first(
        whole(mass), [&](int id) { return key_of(x[id], id); },
        [&](int id) { return whole(double{expf(x[id] - top)} / total); }, room));
  }

  LUCE_DEVICE void keep_min_p(float share, Room &room) {
    float top;
    add_up(top, room);
    raise(key_of(static_cast<float>(double{top} + log(double{share})), 0x7FFFFFFF));
  }

 private:
  LUCE_DEVICE void raise(uint64_t key) { least = key > least ? key : least; }

  LUCE_DEVICE static unsigned long long whole(double probability) { return __double2ull_rn(probability * 0x1p60); }

  // The least key of the fewest first, by key, whose weights add up to `wanted`: at least one; 1 when all do not.
  template <class Key, class Weight>
  LUCE_DEVICE uint64_t least_of_first(unsigned long long wanted, Key key, Weight weight, Room &room) const {
    uint64_t prefix = 0;
    wanted = wanted > 0 ? wanted : 1;
    for (int shift = 56; shift >= 0; shift -= 8) {
      __syncthreads();
      for (int d = threadIdx.x; d < kDigits; d += kRowThreads) room.counts[d] = 0, room.weights[d] = 0;
      __syncthreads();
      for (int id = threadIdx.x; id < V; id += kRowThreads) {
        if (!has(id)) continue;
        const uint64_t k = key(id);
        if (shift < 56 && k >> (shift + 8) != prefix >> (shift + 8)) continue;
        const int digit = static_cast<int>(k >> shift & 255);
        atomicAdd(&room.counts[digit], 1u);
        atomicAdd(&room.weights[digit], weight(id));
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        unsigned long long left = wanted;
        int digit = kDigits - 1;
        while (digit >= 0 && room.weights[digit] < left) left -= room.weights[digit--];
        room.digit = digit;
        room.left = left;
      }
      __syncthreads();
      if (room.digit < 0) return shift == 56 ? 1 : prefix;
      wanted = room.left;
      prefix |= static_cast<uint64_t>(room.digit) << shift;
      if (room.counts[room.digit] == 1) return prefix;
    }
    return prefix;
  }
};

// The token that is drawn from what the row's parameters leave of logits x, whose largest is `top`.
LUCE_DEVICE Best draw_narrow(const luce_sample_row &r, const float *x, int V, float top, Room &room) {
  Selection s(x, V);
  if (r.top_k > 0 && r.top_k < V) s.keep_first(r.top_k, room);
  if (r.typical_p < 1) s.keep_typical(r.typical_p, room);
  if (r.top_p < 1) s.keep_top_p(r.top_p, room);
  if (r.min_p > 0) s.keep_min_p(r.min_p, room);
  const auto word = [&](int id) { return word_of(philox(r.seed, id / 4, r.position, r.choice), id % 4); };
  float most = -INFINITY;
  for (int id = threadIdx.x; id < V; id += kRowThreads) {
    if (s.has(id)) most = fmaxf(most, x[id] / r.temperature + nearly_gumbel(word(id)));
  }
  const float enough = near_enough(largest_of_block(most, room.floats));
  Best best = nobody();
  for (int id = threadIdx.x; id < V; id += kRowThreads) {
    if (!s.has(id) || x[id] / r.temperature + nearly_gumbel(word(id)) < enough) continue;
    best.consider(double{x[id]} / double{r.temperature} + gumbel(word(id)), id);
  }
  return best_of_block(best, room.bests);
}

}  // namespace luce
