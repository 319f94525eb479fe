// conv.cpp: causal depthwise convolution over the rows of each sequence, with silu, and the states it leaves.
//
// Threads share the channels: each sees all rows of its own, and stores states once it has read what they are made of.

#include <cstring>

#include "math.h"
#include "state_rows.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kMostTaps = 16;

int64_t n_blocks(int64_t C) {
  return (C + kLanes - 1) / kLanes;
}

// The K inputs of row i, the oldest first; nullptr: zeros.
template <class Args>
void gather(const Args &a, const StateRows &rows, const Span &span, int64_t i, const float **from) {
  int64_t n_left = a.state.ne[1];
  for (int64_t k = n_left; k >= 0; --k) {
    if (i >= 0) {
      from[k] = row<const float>(a.x, i);
      i = rows.parent(span, i);
    } else {
      --n_left;
      from[k] = span.slot < 0 ? nullptr : row<const float>(a.state, n_left, span.slot);
    }
  }
}

// Channels [begin, end) of the states that are stored.
template <class Args>
void store_states(const Args &a, const StateRows &rows, const Span &span, int64_t begin, int64_t end) {
  const int64_t n_kept = a.state.ne[1];
  const float *from[kMostTaps];
  rows.for_stores(span, [&](int64_t i, int64_t slot) {
    gather(a, rows, span, i, from);
    for (int64_t k = 0; k < n_kept; ++k) {  // in place each goes to where an older one was
      float *to = row<float>(a.state, k, slot) + begin;
      if (from[k + 1] == nullptr) {
        std::fill_n(to, end - begin, 0.0f);
      } else {
        std::memmove(to, from[k + 1] + begin, (end - begin) * sizeof(float));
      }
    }
  });
}

template <class Args>
Verdict check_state(const Args &a) {
  if (!is_f32(a.x) || !is_f32(a.state)) return unsupported("x and state are F32, contiguous along C");
  if (a.x.ne[0] != a.state.ne[0]) return bad("x and state have C channels");
  if (a.state.ne[1] >= kMostTaps) return unsupported("K is at most 16");
  return check_state_rows(a, a.x.ne[1]);
}

Verdict check(const luce_conv_args &a) {
  if (!is_f32(a.weight) || !is_f32(a.out)) return unsupported("weight and out are F32");
  const int64_t K = a.weight.ne[0], C = a.x.ne[0];
  if (a.weight.ne[1] != C || a.weight.nb[1] != K * 4) return bad("weight is [K, C] without gaps");
  if (a.state.ne[1] != K - 1 || !same_shape(a.x, a.out)) return bad("state holds K-1 inputs; x and out have one shape");
  if (K * n_blocks(C) * kLanes * 4 > kScratchBytes) return unsupported("the weight exceeds the scratch of a thread");
  return check_state(a);
}

// Even and odd lanes of the pair (a, b).
template <int first, int... k>
LUCE_INLINE F32 every_other(F32 a, F32 b, std::integer_sequence<int, k...>) {
  return __builtin_shufflevector(a, b, (2 * k + first)...);
}

// Weights of channels [c, c + n) as w[k * stride + channel]; the four taps of all models by shuffles.
void load_taps(const float *weight, int64_t K, int64_t n, float *w, int64_t stride) {
  if (K == 4 && n == kLanes) {
    constexpr auto lanes = std::make_integer_sequence<int, kLanes>();
    F32 x[4];
    for (int j = 0; j < 4; ++j) x[j] = load<F32>(weight + j * kLanes);
    const F32 even[2] = {every_other<0>(x[0], x[1], lanes), every_other<0>(x[2], x[3], lanes)};
    const F32 odd[2] = {every_other<1>(x[0], x[1], lanes), every_other<1>(x[2], x[3], lanes)};
    store(w, every_other<0>(even[0], even[1], lanes));
    store(w + stride, every_other<0>(odd[0], odd[1], lanes));
    store(w + 2 * stride, every_other<1>(even[0], even[1], lanes));
    store(w + 3 * stride, every_other<1>(odd[0], odd[1], lanes));
    return;
  }
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t k = 0; k < K; ++k) w[k * stride + c] = weight[c * K + k];
  }
}

void run(const luce_conv_args &a, const Worker &worker) {
  const StateRows rows(a, a.state.ne[2], worker);
  const int64_t C = a.x.ne[0], K = a.weight.ne[0];
  const Range blocks = share(n_blocks(C), worker);
  const int64_t begin = blocks.begin * kLanes, end = std::min(blocks.end * kLanes, C);
  const int64_t stride = (blocks.end - blocks.begin) * kLanes;
  float *w = static_cast<float *>(worker.scratch);
  for (int64_t c = begin; c < end; c += kLanes) {
    load_taps(static_cast<const float *>(a.weight.data) + c * K, K, std::min<int64_t>(kLanes, end - c), w + c - begin,
              stride);
  }
  rows.for_sequences([&](const Span &span) {
    const float *from[kMostTaps];
    for (int64_t i = span.begin; i < span.end; ++i) {
      gather(a, rows, span, i, from);
      float *out = row<float>(a.out, i);
      for (int64_t c = begin; c < end; c += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, end - c);
        F32 sum = {};
        for (int64_t k = 0; k < K; ++k) {
          if (from[k] == nullptr) continue;
          const F32 u = n == kLanes ? load<F32>(from[k] + c) : load_first<F32>(from[k] + c, n);
          sum = fma(load<F32>(w + k * stride + c - begin), u, sum);
        }
        const F32 y = times_sigmoid(sum, sum);
        if (n == kLanes) {
          store(out + c, y);
        } else {
          store_first(out + c, y, n);
        }
      }
    }
    store_states(a, rows, span, begin, end);
  });
}

Verdict check_commit(const luce_conv_commit_args &a) {
  return check_state(a);
}

void run_commit(const luce_conv_commit_args &a, const Worker &worker) {
  const StateRows rows(a, a.state.ne[2], worker);
  const Range mine = share(a.x.ne[0], worker);
  rows.for_sequences([&](const Span &span) { store_states(a, rows, span, mine.begin, mine.end); });
}

}  // namespace

LUCE_KERNEL(conv, check, run)
LUCE_KERNEL(conv_commit, check_commit, run_commit)

}  // namespace luce::LUCE_ISA
