// sample.cu: one token from each row of logits.
//
// sample_blocks: a block takes 4096 ids of a row: sums for the logprobs; mask, bias and penalties; and where nothing
// narrows the draw, its best token. sample_row: a block takes a row, joins those, and where something narrows the draw
// makes it (narrow.cuh). Noise is made in float first, and exactly for what can still win.

#include "narrow.cuh"
#include "ops.h"
#include "sample.cuh"

namespace luce {
namespace {

constexpr int kThreads = 256, kPerThread = kIds / kThreads;
constexpr int kMostTop = 128;  // alternatives that can be reported

Verdict check(const luce_sample_args &a) {
  const Verdict verdict = check_sample(a);
  if (verdict.status != LUCE_OK || !a.top_ids.data || a.top_ids.ne[0] <= kMostTop) return verdict;
  return unsupported("at most 128 alternatives are reported");
}

void launch(const luce_sample_args &a, Launcher &launcher) {
  const unsigned m = static_cast<unsigned>(a.logits.ne[1]);
  launcher(kernel_sample_blocks, dim3(blocks_of(a.logits.ne[0], kIds), m), kThreads, 0, a);
  launcher(kernel_sample_row, dim3(m), kRowThreads, 0, a);
}

// ---- logits as the request wants them: x is those of ids [begin, begin + n), in shared memory ----

struct Adjuster {
  const luce_sample_args &a;
  int i, begin, n;
  float *x;
  uint32_t *fault;

  LUCE_DEVICE void run() const {
    const luce_sample_row &r = sample_row_of(a, i);
    if (r.mask >= 0) forbid(r.mask);
    __syncthreads();
    if (threadIdx.x == 0) add_bias(r.bias_begin, r.bias_end);
    __syncthreads();
    if (r.slot >= 0) penalise(r);
    __syncthreads();
  }

 private:
  LUCE_DEVICE void forbid(int mask) const {
    if (mask >= a.masks.ne[1]) return set_fault(fault, LUCE_FAULT_ROW);
    const uint32_t *words = row<const uint32_t>(a.masks, mask);
    for (int k = threadIdx.x; k < n; k += kThreads) {
      if ((words[(begin + k) / 32] >> (begin + k) % 32 & 1) == 0) x[k] = -INFINITY;
    }
  }

  // In order: an id may have several.
  LUCE_DEVICE void add_bias(int first, int end) const {
    if (first < 0 || end > a.bias_ids.ne[0]) return set_fault(fault, LUCE_FAULT_ROW);
    for (int j = first; j < end; ++j) {
      const int id = list<int32_t>(a.bias_ids)[j];
      if (id < 0 || id >= a.logits.ne[0]) set_fault(fault, LUCE_FAULT_TOKEN);
      if (id >= begin && id < begin + n) x[id - begin] += list<float>(a.bias_values)[j];
    }
  }

  // How often the draft's path to row i, below its root, holds a token.
  LUCE_DEVICE int count_in_path(int token) const {
    int count = 0;
    for (int at = i; has_parent(at); at = sample_row_of(a, at).parent) count += sample_row_of(a, at).token == token;
    return count;
  }
  LUCE_DEVICE bool has_parent(int at) const {
    const int parent = sample_row_of(a, at).parent;
    return parent >= 0 && parent < at;
  }

  LUCE_DEVICE void penalise(const luce_sample_row &r) const {
    if (r.slot >= a.counts.ne[1]) return set_fault(fault, LUCE_FAULT_ROW);
    const int32_t *counts = row<const int32_t>(a.counts, r.slot);
    for (int k = threadIdx.x; k < n; k += kThreads) {
      const int count = counts[begin + k];
      const int generated = (count & (LUCE_COUNT_PROMPT - 1)) + count_in_path(begin + k);
      if (generated > 0 || (count & LUCE_COUNT_PROMPT) != 0) {
        x[k] = x[k] > 0 ? x[k] / r.repetition_penalty : x[k] * r.repetition_penalty;
      }
      if (generated > 0) x[k] = x[k] - r.frequency_penalty * static_cast<float>(generated) - r.presence_penalty;
    }
    if (threadIdx.x != 0 || begin != 0) return;
    for (int at = i; has_parent(at); at = sample_row_of(a, at).parent) {
      const int token = sample_row_of(a, at).token;
      if (token < 0 || token >= a.logits.ne[0]) set_fault(fault, LUCE_FAULT_TOKEN);
    }
  }
};

// The best of a block's tokens when nothing narrows the draw.
LUCE_DEVICE Best best_of_all(const luce_sample_row &r, const float *x, int begin, int n, float *floats, Best *bests) {
  Best best = nobody();
  if (r.temperature <= 0) {
    for (int k = threadIdx.x; k < n; k += kThreads) {
      if (x[k] > -INFINITY) best.consider(x[k], begin + k);
    }
    return best_of_block(best, bests);
  }
  uint4 words[kPerThread / 4];
  float most = -INFINITY;
#pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {
    const int first = (j * kThreads + threadIdx.x) * 4;
    if (first >= n) break;
    words[j] = philox(r.seed, (begin + first) / 4, r.position, r.choice);
    for (int c = 0; c < 4 && first + c < n; ++c) {
      most = fmaxf(most, x[first + c] / r.temperature + nearly_gumbel(word_of(words[j], c)));
    }
  }
  const float least = near_enough(largest_of_block(most, floats));
#pragma unroll
  for (int j = 0; j < kPerThread / 4; ++j) {
    const int first = (j * kThreads + threadIdx.x) * 4;
    if (first >= n) break;
    for (int c = 0; c < 4 && first + c < n; ++c) {
      const float logit = x[first + c];
      const uint32_t word = word_of(words[j], c);
      if (logit == -INFINITY || logit / r.temperature + nearly_gumbel(word) < least) continue;
      best.consider(double{logit} / double{r.temperature} + gumbel(word), begin + first + c);
    }
  }
  return best_of_block(best, bests);
}

}  // namespace

LUCE_GLOBAL(sample_blocks)(const __grid_constant__ luce_sample_args a, uint32_t *fault) {
  __shared__ float x[kIds];
  __shared__ float floats[kThreads / kLanes];
  __shared__ Best bests[kThreads / kLanes];
  begin();
  const int i = blockIdx.y, first = blockIdx.x * kIds, V = static_cast<int>(a.logits.ne[0]), n = min(kIds, V - first);
  if (i >= true_rows(a.n_rows, a.logits.ne[1])) return;
  const float *logits = row<const float>(a.logits, i) + first;
  const auto largest = [&](bool &is_broken) {
    float top = -INFINITY;
    bool is_good = true;
    for (int k = threadIdx.x; k < n; k += kThreads) {
      top = fmaxf(top, x[k]);
      is_good &= x[k] < INFINITY;
    }
    is_broken = __syncthreads_or(!is_good);
    return largest_of_block(top, floats);
  };
  for (int k = threadIdx.x; k < n; k += kThreads) x[k] = logits[k];
  __syncthreads();
  bool is_broken;
  const float top = largest(is_broken);
  float total = 0;
  for (int k = threadIdx.x; k < n && top > -INFINITY; k += kThreads) total += expf(x[k] - top);
  total = sum_of_block(total, floats);

  const luce_sample_row &r = sample_row_of(a, i);
  float adjusted_top = top;
  bool is_adjusted_broken = is_broken;
  if (!is_plain(r)) {
    __syncthreads();
    Adjuster{a, i, first, n, x, fault}.run();
    adjusted_top = largest(is_adjusted_broken);
    float *adjusted = adjusted_of(a, i) + first;
    for (int k = threadIdx.x; k < n; k += kThreads) adjusted[k] = x[k];
  }
  Best best = nobody();
  if (is_wide(r, V) && !is_adjusted_broken) best = best_of_all(r, x, first, n, floats, bests);
  if (threadIdx.x == 0) {
    parts_of(a, i)[blockIdx.x] = {best.score, top, total, adjusted_top, best.token, is_broken, is_adjusted_broken};
  }
}

// A token id and what it is compared by, of the alternatives.
struct Alternative {
  uint64_t key;
  int id;
};

extern "C" __global__ void __launch_bounds__(kRowThreads)
    luce_kernel_sample_row(const __grid_constant__ luce_sample_args a, uint32_t *fault) {
  __shared__ Room room;
  __shared__ Alternative found[kMostTop];
  __shared__ int n_found;
  begin();
  const int i = blockIdx.x, V = static_cast<int>(a.logits.ne[0]), n_blocks = id_blocks(a);
  if (i >= true_rows(a.n_rows, a.logits.ne[1])) return;
  const luce_sample_row &r = sample_row_of(a, i);
  const BlockPart *parts = parts_of(a, i);
  const float *logits = row<const float>(a.logits, i);

  float top = -INFINITY, adjusted_top = -INFINITY;
  bool is_bad = false;
  Best best = nobody();
  for (int b = threadIdx.x; b < n_blocks; b += kRowThreads) {
    top = fmaxf(top, parts[b].top);
    adjusted_top = fmaxf(adjusted_top, parts[b].adjusted_top);
    is_bad |= parts[b].is_broken || parts[b].is_adjusted_broken;
    best.consider(parts[b].score, parts[b].token);
  }
  top = largest_of_block(top, room.floats);
  adjusted_top = largest_of_block(adjusted_top, room.floats);
  is_bad = __syncthreads_or(is_bad) || top == -INFINITY || adjusted_top == -INFINITY;
  if (is_bad) {
    if (threadIdx.x == 0) {
      set_fault(fault, LUCE_FAULT_LOGITS);
      static_cast<int32_t *>(a.token.data)[i] = 0;
      static_cast<float *>(a.logprob.data)[i] = -INFINITY;
    }
  } else {
    double total = 0;
    for (int b = threadIdx.x; b < n_blocks; b += kRowThreads) {
      if (parts[b].total > 0) total += parts[b].total * exp(double{parts[b].top} - double{top});
    }
    const double log_total = log(sum_of_block(total, room.doubles));
    best = is_wide(r, V) ? best_of_block(best, room.bests)
                         : draw_narrow(r, is_plain(r) ? logits : adjusted_of(a, i), V, adjusted_top, room);
    const auto logprob = [&](int id) { return static_cast<float>(double{logits[id]} - top - log_total); };
    if (threadIdx.x == 0) {
      static_cast<int32_t *>(a.token.data)[i] = best.token;
      static_cast<float *>(a.logprob.data)[i] = logprob(best.token);
    }
    const int wanted = a.top_ids.data ? min(r.n_top, static_cast<int>(a.top_ids.ne[0])) : 0;
    if (wanted > 0) {
      Selection all(logits, V);
      all.keep_first(wanted, room);
      __syncthreads();
      if (threadIdx.x == 0) n_found = 0;
      __syncthreads();
      for (int id = threadIdx.x; id < V; id += kRowThreads) {
        if (all.has(id)) found[atomicAdd(&n_found, 1)] = {key_of(logits[id], id), id};
      }
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < n_found) {
        const Alternative mine = found[threadIdx.x];
        int rank = 0;
        for (int j = 0; j < n_found; ++j) rank += found[j].key > mine.key;
        row<int32_t>(a.top_ids, i)[rank] = mine.id;
        row<float>(a.top_logprobs, i)[rank] = logprob(mine.id);
      }
    }
  }
  if (a.top_ids.data == nullptr) return;
  const int n_told = !is_bad && r.n_top > 0 ? n_found : 0;
  for (int j = n_told + threadIdx.x; j < a.top_ids.ne[0]; j += kRowThreads) {
    row<int32_t>(a.top_ids, i)[j] = -1;
    row<float>(a.top_logprobs, i)[j] = -INFINITY;
  }
}

}  // namespace luce

LUCE_OP(sample, check, launch, sample_workspace)
