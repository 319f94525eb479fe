// sample.cpp: one token from each row of logits.
//
// First all threads add up all rows, block by block; then each row belongs to one thread. The noise of a draw is made
// only where it can matter: g has an upper bound, and a random word that is too small for its group is left at one
// comparison.

#include "candidates.h"
#include "kernel.h"
#include "ops.h"
#include "philox.h"

namespace luce::LUCE_ISA {
namespace {

int64_t count_blocks(int64_t V) {
  return (V + kBlock - 1) / kBlock;
}

int64_t round_up(int64_t n) {
  return (n + 63) / 64 * 64;
}

// The workspace: sums of all blocks of all rows, then for each thread a row of logits and of candidates.
struct Workspace {
  Workspace(const luce_sample_args &a, int64_t n_threads)
      : V(a.logits.ne[0]),
        sums_bytes(round_up(a.logits.ne[1] * count_blocks(V) * sizeof(BlockSum))),
        logits_bytes(round_up(V * sizeof(float))),
        thread_bytes(logits_bytes + round_up(V * sizeof(Candidate))),
        bytes(sums_bytes + n_threads * thread_bytes) {}

  const int64_t V, sums_bytes, logits_bytes, thread_bytes, bytes;
};

class Sampler {
 public:
  Sampler(const luce_sample_args &a, const Worker &worker)
      : a_(a),
        worker_(worker),
        n_(true_rows(a.n_rows, a.logits.ne[1])),
        V_(a.logits.ne[0]),
        rows_(static_cast<const luce_sample_row *>(a.rows.data)) {
    const Workspace layout(a, worker.count);
    char *memory = static_cast<char *>(a.workspace.data);
    sums_ = reinterpret_cast<BlockSum *>(memory);
    memory += layout.sums_bytes + worker.index * layout.thread_bytes;
    adjusted_ = reinterpret_cast<float *>(memory);
    candidates_ = reinterpret_cast<Candidate *>(memory + layout.logits_bytes);
  }

  void run() {
    const int64_t n_blocks = count_blocks(V_);
    const Range mine = share(n_ * n_blocks, worker_);
    for (int64_t u = mine.begin; u < mine.end; ++u) {
      const int64_t begin = u % n_blocks * kBlock;
      sums_[u] = add_up(logits(u / n_blocks) + begin, std::min(kBlock, V_ - begin));
    }
    worker_.barrier();
    for (int64_t i = worker_.index; i < n_; i += worker_.count) sample(i);
  }

 private:
  const float *logits(int64_t i) const { return row<const float>(a_.logits, i); }

  void sample(int64_t i) {
    RowSum raw;
    for (int64_t b = 0; b < count_blocks(V_); ++b) raw.add(sums_[i * count_blocks(V_) + b]);
    int64_t token = -1;
    if (!raw.is_broken && raw.total > 0) token = is_plain(rows_[i]) ? draw(i, logits(i), raw) : draw_adjusted(i);
    if (token < 0) worker_.fault(LUCE_FAULT_LOGITS);
    report(i, token, raw);
  }

  static bool is_plain(const luce_sample_row &r) { return r.mask < 0 && r.slot < 0 && r.bias_begin >= r.bias_end; }

  // ---- logits as the request wants them ----

  int64_t draw_adjusted(int64_t i) {
    std::copy_n(logits(i), V_, adjusted_);
    const luce_sample_row &r = rows_[i];
    if (r.mask >= 0) forbid(r.mask);
    add_bias(r.bias_begin, r.bias_end);
    if (r.slot >= 0) penalise(i);
    const RowSum sum_of = add_up_row(adjusted_, V_);
    return sum_of.total > 0 && !sum_of.is_broken ? draw(i, adjusted_, sum_of) : -1;
  }

  void forbid(int64_t mask) {
    if (mask >= a_.masks.ne[1]) return worker_.fault(LUCE_FAULT_ROW);
    const uint32_t *words = row<const uint32_t>(a_.masks, mask);
    for (int64_t w = 0; w * 32 < V_; ++w) {
      if (words[w] == 0xFFFFFFFF) continue;
      const int64_t end = std::min<int64_t>(V_, w * 32 + 32);
      for (int64_t v = w * 32; v < end; ++v) {
        if ((words[w] >> (v % 32) & 1) == 0) adjusted_[v] = -kInfinity;
      }
    }
  }

  void add_bias(int64_t begin, int64_t end) {
    if (begin < 0 || end > a_.bias_ids.ne[0]) return worker_.fault(LUCE_FAULT_ROW);
    for (int64_t j = begin; j < end; ++j) {
      const int32_t id = static_cast<const int32_t *>(a_.bias_ids.data)[j];
      if (id < 0 || id >= V_) {
        worker_.fault(LUCE_FAULT_TOKEN);
      } else {
        adjusted_[id] += static_cast<const float *>(a_.bias_values.data)[j];
      }
    }
  }

  // How often the draft's path to row i, below its root, holds a token.
  int32_t count_in_path(int64_t i, int32_t token) const {
    int32_t n = 0;
    for (; has_parent(i); i = rows_[i].parent) n += rows_[i].token == token;
    return n;
  }
  bool has_parent(int64_t i) const { return rows_[i].parent >= 0 && rows_[i].parent < i; }

  void penalise(int64_t i) {
    if (rows_[i].slot >= a_.counts.ne[1]) return worker_.fault(LUCE_FAULT_ROW);
    const int32_t *counts = row<const int32_t>(a_.counts, rows_[i].slot);
    for (int64_t begin = 0; begin < V_; begin += 16) {
      const int64_t end = std::min<int64_t>(begin + 16, V_);
      int32_t any = 0;
      for (int64_t v = begin; v < end; ++v) any |= counts[v];
      if (any == 0) continue;
      for (int64_t v = begin; v < end; ++v) {
        if (counts[v] != 0) penalise_token(rows_[i], v, counts[v], count_in_path(i, v));
      }
    }
    for (int64_t node = i; has_parent(node); node = rows_[node].parent) {
      const int32_t token = rows_[node].token;
      const bool is_first = count_in_path(rows_[node].parent, token) == 0;
      if (token < 0 || token >= V_) {
        worker_.fault(LUCE_FAULT_TOKEN);
      } else if (is_first && counts[token] == 0) {
        penalise_token(rows_[i], token, 0, count_in_path(i, token));
      }
    }
  }

  void penalise_token(const luce_sample_row &r, int64_t token, int32_t count, int32_t in_path) {
    const int32_t generated = (count & (LUCE_COUNT_PROMPT - 1)) + in_path;
    float &x = adjusted_[token];
    x = x > 0 ? x / r.repetition_penalty : x * r.repetition_penalty;
    if (generated > 0) x = x - r.frequency_penalty * generated - r.presence_penalty;
  }

  // ---- the draw ----

  int64_t draw(int64_t i, const float *x, const RowSum &sum_of) {
    const luce_sample_row &r = rows_[i];
    const int64_t best = first_equal(x, V_, sum_of.top);
    if (r.temperature <= 0) return best;
    Candidates candidates(x, V_, sum_of, candidates_);
    candidates.narrow(r);
    Draw draw = {r, x};
    if (candidates.is_all()) {
      draw.consider(best);
      draw.consider_all(V_);
    } else {
      for (const Candidate &c : candidates) draw.consider(c.id);
    }
    return draw.token;
  }

  // The largest logit / temperature + noise so far.
  struct Draw {
    const luce_sample_row &r;
    const float *x;
    int64_t token = -1;
    double score = -INFINITY;

    double scaled(float logit) const { return double{logit} / double{r.temperature}; }

    void consider(int64_t id) {
      if (scaled(x[id]) + kLargestNoise < score) return;
      uint64_t c[4] = {static_cast<uint64_t>(id / 4), static_cast<uint32_t>(r.position),
                       static_cast<uint32_t>(r.choice), 0};
      philox(r.seed, c);
      consider(id, c[id % 4]);
    }

    void consider(int64_t id, uint64_t word) {
      const double sum_of = scaled(x[id]) + gumbel(word);
      if (sum_of > score || (sum_of == score && id < token)) {
        score = sum_of;
        token = id;
      }
    }

    void consider_all(int64_t V) {
      // least_word[j]: below it a word's noise is less than j * kWidth + kLeast.
      constexpr double kLeast = -4, kWidth = 0.5;
      constexpr int kSteps = 54;  // to kLargestNoise
      uint64_t least_word[kSteps];
      for (int j = 0; j < kSteps; ++j) {
        const double u = std::exp(-std::exp(-(kLeast + j * kWidth)));
        least_word[j] = static_cast<uint64_t>(std::max(u * 0x1p32 - 2, 0.0));
      }
      constexpr int64_t kIds = 4 * kCounters;
      U64 lane = {};
      for (int j = 0; j < kCounters; ++j) lane[j] = j;
      for (int64_t begin = 0; begin < V; begin += kIds) {
        const int64_t end = std::min(begin + kIds, V);
        const double needed = score - scaled(largest_of(x + begin, end - begin));
        if (needed > kLargestNoise) continue;
        const int step = static_cast<int>(std::floor((std::max(needed, kLeast) - kLeast) / kWidth));
        const uint64_t least = needed <= kLeast ? 0 : least_word[step];
        U64 c[4] = {lane + static_cast<uint64_t>(begin / 4), U64{} + static_cast<uint32_t>(r.position),
                    U64{} + static_cast<uint32_t>(r.choice), U64{}};
        philox(r.seed, c);
        uint64_t words[4][kCounters];
        uint64_t largest_word = 0;
        for (int j = 0; j < 4; ++j) store(words[j], c[j]);
        for (int j = 0; j < 4; ++j) {
          for (int l = 0; l < kCounters; ++l) largest_word = std::max(largest_word, words[j][l]);
        }
        if (largest_word < least) continue;
        for (int64_t id = begin; id < end; ++id) {
          const uint64_t word = words[id % 4][(id - begin) / 4];
          if (word >= least) consider(id, word);
        }
      }
    }
  };

  // ---- what the caller is told ----

  void report(int64_t i, int64_t token, const RowSum &raw) {
    const float *x = logits(i);
    const bool is_good = token >= 0;
    const double log_total = is_good ? raw.log_total() : 0;
    const auto logprob = [&](int64_t id) { return static_cast<float>(double{x[id]} - raw.top - log_total); };
    static_cast<int32_t *>(a_.token.data)[i] = is_good ? static_cast<int32_t>(token) : 0;
    static_cast<float *>(a_.logprob.data)[i] = is_good ? logprob(token) : -kInfinity;
    if (a_.top_ids.data == nullptr) return;
    const int64_t room = a_.top_ids.ne[0], wanted = std::min<int64_t>(rows_[i].n_top, room);
    const int64_t n = is_good && wanted > 0 ? collect_largest(x, V_, wanted, candidates_) : 0;
    int32_t *ids = row<int32_t>(a_.top_ids, i);
    float *logprobs = row<float>(a_.top_logprobs, i);
    for (int64_t j = 0; j < room; ++j) {
      ids[j] = j < n ? candidates_[j].id : -1;
      logprobs[j] = j < n ? logprob(candidates_[j].id) : -kInfinity;
    }
  }

  const luce_sample_args &a_;
  const Worker &worker_;
  const int64_t n_, V_;
  const luce_sample_row *rows_;
  BlockSum *sums_;
  float *adjusted_;
  Candidate *candidates_;
};

void run(const luce_sample_args &a, const Worker &worker) {
  Sampler(a, worker).run();
}

int64_t workspace(const luce_sample_args &a, int n_threads) {
  return Workspace(a, n_threads).bytes;
}

}  // namespace

LUCE_KERNEL(sample, check_sample, run, workspace)

}  // namespace luce::LUCE_ISA
