// hyper.cpp: hyper-connections: the weights by which N streams of a residual are read, written and mixed, and the
// mixing.
//
// The weights of a row are N^2 + 2N numbers: they belong to one thread. Mixing reads each stream once.

#include <algorithm>
#include <cmath>

#include "kernel.h"
#include "math.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kBlock = 512;  // values of a stream that one thread mixes

// Streams, from the weights of a row; 0: there is no such number.
int64_t count_streams(int64_t n_weights) {
  for (int64_t N = 1; N <= kMaxStreams; ++N) {
    if (N * (N + 2) == n_weights) return N;
  }
  return 0;
}

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

// mix[s * N + d] divided by its sums over s plus eps; `across` and `along`: the steps from one s, one d to the next.
void normalize(float *mix, int64_t N, int64_t across, int64_t along, float eps) {
  for (int64_t d = 0; d < N; ++d) {
    float sum = 0;
    for (int64_t s = 0; s < N; ++s) sum += mix[s * across + d * along];
    for (int64_t s = 0; s < N; ++s) mix[s * across + d * along] /= sum + eps;
  }
}

void make_mix(float *mix, int64_t N, float eps, int32_t n_rounds) {
  for (int64_t s = 0; s < N; ++s) {
    float *of = mix + s * N, total = 0;
    const float top = *std::max_element(of, of + N);
    for (int64_t d = 0; d < N; ++d) total += of[d] = std::exp(of[d] - top);
    for (int64_t d = 0; d < N; ++d) of[d] = of[d] / total + eps;
  }
  normalize(mix, N, N, 1, eps);
  for (int32_t round = 1; round < n_rounds; ++round) {
    normalize(mix, N, 1, N, eps);
    normalize(mix, N, N, 1, eps);
  }
}

Verdict check_weights(const luce_hyper_weights_args &a) {
  if (!is_f32(a.logits) || !is_f32(a.base) || !is_f32(a.scale) || !is_f32(a.out)) return unsupported("all are F32");
  if (!same_shape(a.logits, a.out) || a.base.ne[0] != a.logits.ne[0]) return bad("logits, base and out: one width");
  if (a.scale.ne[0] == 1) return a.logits.ne[0] <= kMaxStreams ? Verdict{} : unsupported("8 streams at most");
  if (a.scale.ne[0] != 3 || count_streams(a.logits.ne[0]) == 0) return bad("3 scales for N (N + 2) weights, N <= 8");
  return {};
}

void run_weights(const luce_hyper_weights_args &a, const Worker &worker) {
  const bool is_whole = a.scale.ne[0] == 3;
  const int64_t W = a.logits.ne[0], N = is_whole ? count_streams(W) : W;
  const float *base = static_cast<const float *>(a.base.data), *scale = static_cast<const float *>(a.scale.data);
  const Range mine = share(true_rows(a.n_rows, a.logits.ne[1]), worker);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const float *logits = row<const float>(a.logits, i);
    float *out = row<float>(a.out, i);
    for (int64_t k = 0; k < W; ++k) out[k] = logits[k] * scale[std::min<int64_t>(k / N, 2)] + base[k];
    for (int64_t s = 0; s < N; ++s) out[s] = sigmoid(out[s]) + a.eps;
    if (!is_whole) continue;
    for (int64_t d = N; d < 2 * N; ++d) out[d] = 2 * sigmoid(out[d]);
    make_mix(out + 2 * N, N, a.eps, a.n_rounds);
  }
}

Verdict check_mix(const luce_hyper_mix_args &a) {
  const int64_t E = a.x.ne[0], N = a.x.ne[1], n = a.x.ne[2];
  if (!is_f32(a.x) || !is_f32(a.y) || !is_f32(a.weights) || !is_f32(a.out)) return unsupported("all tensors are F32");
  if (!same_shape(a.x, a.out) || a.y.ne[0] != E || a.y.ne[1] != n) return bad("x and out are [E, N, n], y [E, n]");
  if (N > kMaxStreams) return unsupported("8 streams at most");
  return a.weights.ne[0] == N * (N + 2) && a.weights.ne[1] == n ? Verdict{} : bad("weights are [N (N + 2), n]");
}

void run_mix(const luce_hyper_mix_args &a, const Worker &worker) {
  const int64_t E = a.x.ne[0], N = a.x.ne[1], n_blocks = (E + kBlock - 1) / kBlock;
  const Range mine = share(true_rows(a.n_rows, a.x.ne[2]) * n_blocks, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / n_blocks, begin = u % n_blocks * kBlock, end = std::min(begin + kBlock, E);
    const float *post = row<const float>(a.weights, i) + N, *mix = post + N, *y = row<const float>(a.y, i);
    for (int64_t k = begin; k < end; k += kLanes) {
      const int64_t width = std::min<int64_t>(kLanes, end - k);
      const F32 made = load_first<F32>(y + k, width);
      F32 x[kMaxStreams];  // all of them before any is written: out may be x
      for (int64_t s = 0; s < N; ++s) x[s] = load_first<F32>(row<const float>(a.x, s, i) + k, width);
      for (int64_t d = 0; d < N; ++d) {
        F32 sum = made * post[d];
        for (int64_t s = 0; s < N; ++s) sum = fma(splat(mix[s * N + d]), x[s], sum);
        store_first(row<float>(a.out, d, i) + k, sum, width);
      }
    }
  }
}

}  // namespace

LUCE_KERNEL(hyper_weights, check_weights, run_weights)
LUCE_KERNEL(hyper_mix, check_mix, run_mix)

}  // namespace luce::LUCE_ISA
