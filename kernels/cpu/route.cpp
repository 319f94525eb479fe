// route.cpp: which experts a row goes to, and with what weights; and the weighted sum of what they made of it.
//
// A row of route belongs to one thread: N is a few hundred. The threads share combine as they share pointwise ops.

#include <algorithm>
#include <cmath>

#include "kernel.h"
#include "math.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kMaxExperts = 4096;  // p, scores and marks of so many lie in a thread's scratch
static_assert(kMaxExperts * (2 * sizeof(float) + 1) <= kScratchBytes);

constexpr float kLeast = -__builtin_inff();

float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// p[i] = e^(x[i] - largest) / their sum; n values, in place or not.
void softmax(const float *x, float *p, int64_t n) {
  float most = kLeast;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, x[i]);
  float total = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t width = std::min<int64_t>(kLanes, n - i);
    store_first(p + i, exp(load_first<F32>(x + i, width) - most), width);
  }
  for (int64_t i = 0; i < n; ++i) total += p[i];
  for (int64_t i = 0; i < n; ++i) p[i] /= total;
}

void gate(int32_t gating, const float *logits, float *p, int64_t N) {
  switch (gating) {
    case LUCE_GATING_SOFTMAX:
      return softmax(logits, p, N);
    case LUCE_GATING_SIGMOID:
      for (int64_t i = 0; i < N; i += kLanes) {
        const int64_t width = std::min<int64_t>(kLanes, N - i);
        store_first(p + i, times_sigmoid(splat(1.0f), load_first<F32>(logits + i, width)), width);
      }
      return;
    case LUCE_GATING_SQRT_SOFTPLUS:
      for (int64_t i = 0; i < N; ++i) p[i] = std::sqrt(softplus(logits[i]));
      return;
    default:
      std::copy_n(logits, N, p);
  }
}

// The first of the largest scores that are not taken; all lie in [0, n).
int64_t best_of(const float *scores, const bool *taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
  }
  return best;
}

// Leaves only the best groups in the choice.
void keep_groups(const luce_route_args &a, float *scores, int64_t N) {
  const int64_t n = N / a.n_groups;
  float worth[kMaxExperts];
  bool kept[kMaxExperts] = {};
  for (int g = 0; g < a.n_groups; ++g) {
    float first = kLeast, second = kLeast;
    for (int64_t i = g * n; i < (g + 1) * n; ++i) {
      second = std::max(second, std::min(first, scores[i]));
      first = std::max(first, scores[i]);
    }
    worth[g] = n > 1 ? first + second : first;
  }
  for (int g = 0; g < a.n_groups_used; ++g) kept[best_of(worth, kept, a.n_groups)] = true;
  for (int g = 0; g < a.n_groups; ++g) {
    if (!kept[g]) std::fill_n(scores + g * n, n, kLeast);
  }
}

// The ids of row i; false: its token has none.
bool choose(const luce_route_args &a, int64_t i, const float *p, int32_t *ids, const Worker &worker) {
  const int64_t N = a.logits.ne[0], k = a.ids.ne[0];
  if (a.table.data) {
    const int32_t token = static_cast<const int32_t *>(a.tokens.data)[i];
    if (token < 0 || token >= a.table.ne[1]) {
      worker.fault(LUCE_FAULT_TOKEN);
      return false;
    }
    std::copy_n(row<const int32_t>(a.table, token), k, ids);
    if (std::all_of(ids, ids + k, [&](int32_t id) { return id >= 0 && id < N; })) return true;
    worker.fault(LUCE_FAULT_ROW);
    return false;
  }
  float *scores = static_cast<float *>(worker.scratch) + kMaxExperts;
  bool *taken = reinterpret_cast<bool *>(scores + kMaxExperts);
  const float *bias = static_cast<const float *>(a.bias.data);
  for (int64_t x = 0; x < N; ++x) {
    const float score = bias ? p[x] + bias[x] : p[x];
    scores[x] = score == score ? score : kLeast;
  }
  if (a.n_groups > 1) keep_groups(a, scores, N);
  std::fill_n(taken, N, false);
  for (int64_t e = 0; e < k; ++e) {
    ids[e] = static_cast<int32_t>(best_of(scores, taken, N));
    taken[ids[e]] = true;
  }
  return true;
}

Verdict check_route(const luce_route_args &a) {
  const int64_t N = a.logits.ne[0], n = a.logits.ne[1], k = a.ids.ne[0];
  if (!is_f32(a.logits) || !is_f32(a.weights) || !is_i32(a.ids)) return unsupported("logits, weights F32; ids I32");
  if (a.ids.ne[1] != n || !same_shape(a.ids, a.weights)) return bad("ids and weights are [k, n] for logits [N, n]");
  if (k > N) return bad("k experts of N");
  if (N > kMaxExperts) return unsupported("at most 4096 experts");
  if (a.gating < LUCE_GATING_SOFTMAX || a.gating > LUCE_GATING_SQRT_SOFTPLUS) return unsupported("no such gating");
  if (a.bias.data && (!is_f32(a.bias) || a.bias.ne[0] != N)) return bad("bias is F32 [N]");
  if (a.table.data) {
    if (!is_i32(a.table) || a.table.ne[0] != k) return bad("table is I32 [k, V]");
    if (!is_i32(a.tokens) || a.tokens.ne[0] != n) return bad("with a table, tokens are I32 [n]");
  }
  if (a.n_groups > 1 && (N % a.n_groups != 0 || a.n_groups_used < 1 || a.n_groups_used > a.n_groups ||
                         N / a.n_groups * a.n_groups_used < k)) {
    return bad("groups are equal, and those used hold k experts");
  }
  return {};
}

void run_route(const luce_route_args &a, const Worker &worker) {
  const int64_t N = a.logits.ne[0], k = a.ids.ne[0];
  float *p = static_cast<float *>(worker.scratch);
  const Range mine = share(true_rows(a.n_rows, a.logits.ne[1]), worker);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    int32_t *ids = row<int32_t>(a.ids, i);
    float *weights = row<float>(a.weights, i);
    gate(a.gating, row<const float>(a.logits, i), p, N);
    if (!choose(a, i, p, ids, worker)) {
      std::fill_n(ids, k, 0);
      std::fill_n(weights, k, 0.0f);
      continue;
    }
    for (int64_t e = 0; e < k; ++e) weights[e] = p[ids[e]];
    if (a.gating == LUCE_GATING_SOFTMAX_CHOSEN) softmax(weights, weights, k);
    float divisor = 1;
    if (a.floor > 0) {
      divisor = 0;
      for (int64_t e = 0; e < k; ++e) divisor += weights[e];
      divisor = std::max(divisor, a.floor);
    }
    for (int64_t e = 0; e < k; ++e) weights[e] = a.scale * (weights[e] / divisor);
  }
}

constexpr int64_t kBlock = 512;  // values of a row that one thread adds up

Verdict check_combine(const luce_combine_args &a) {
  const int64_t D = a.out.ne[0], n = a.out.ne[1], k = a.weights.ne[0];
  if (!is_f32(a.x) || !is_f32(a.weights) || !is_f32(a.out)) return unsupported("all tensors are F32");
  if (a.x.ne[0] != D * k || a.x.ne[1] != n || a.weights.ne[1] != n) return bad("x is [D * k, n] for weights [k, n]");
  if (a.add.data && (!is_f32(a.add) || !same_shape(a.add, a.out))) return bad("add is F32 [D, n]");
  return {};
}

void run_combine(const luce_combine_args &a, const Worker &worker) {
  const int64_t D = a.out.ne[0], k = a.weights.ne[0], n_blocks = (D + kBlock - 1) / kBlock;
  const Range mine = share(true_rows(a.n_rows, a.out.ne[1]) * n_blocks, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / n_blocks, begin = u % n_blocks * kBlock, end = std::min(begin + kBlock, D);
    const float *x = row<const float>(a.x, i), *weights = row<const float>(a.weights, i);
    for (int64_t j = begin; j < end; j += kLanes) {
      const int64_t width = std::min<int64_t>(kLanes, end - j);
      const bool whole = width == kLanes;
      auto part = [&](const float *p) { return whole ? load<F32>(p) : load_first<F32>(p, width); };
      F32 sum = {};
      for (int64_t e = 0; e < k; ++e) sum = fma(splat(weights[e]), part(x + e * D + j), sum);
      if (a.add.data) sum += part(row<const float>(a.add, i) + j);
      float *out = row<float>(a.out, i) + j;
      whole ? store(out, sum) : store_first(out, sum, width);
    }
  }
}

}  // namespace

LUCE_KERNEL(route, check_route, run_route)
LUCE_KERNEL(combine, check_combine, run_combine)

}  // namespace luce::LUCE_ISA
