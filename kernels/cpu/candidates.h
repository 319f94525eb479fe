// candidates.h: the tokens of a row of logits that top_k, typical_p, top_p and min_p leave.
#pragma once

#include <algorithm>
#include <cmath>

#include "luce.h"
#include "math.h"

namespace luce::LUCE_ISA {

constexpr int64_t kBlock = 4096;  // ids whose e^x are added by themselves: the same sum however threads share them
constexpr float kInfinity = __builtin_inff();

// n values, the lanes beyond them -inf.
LUCE_INLINE F32 load_logits(const float *x, int64_t n) {
  if (n >= kLanes) return load<F32>(x);
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -kInfinity);
  std::copy_n(x, n, lanes);
  return load<F32>(lanes);
}

// A block's largest logit and the sum of e^(logit - top).
struct BlockSum {
  float top = -kInfinity;
  float total = 0;
  bool is_broken = false;  // a NaN, or +inf
};

inline BlockSum add_up(const float *x, int64_t n) {
  F32 top = splat(-kInfinity);
  I32 good = I32{} - 1;
  for (int64_t k = 0; k < n; k += kLanes) {
    const F32 v = load_logits(x + k, n - k);
    top = max(top, v);
    good &= v < kInfinity;
  }
  BlockSum sum_of;
  sum_of.top = largest(top);
  for (int lane = 0; lane < kLanes; ++lane) sum_of.is_broken |= good[lane] == 0;
  if (sum_of.is_broken || sum_of.top == -kInfinity) return sum_of;
  F32 total = {};
  for (int64_t k = 0; k < n; k += kLanes) total += exp(load_logits(x + k, n - k) - sum_of.top);
  sum_of.total = sum(total);
  return sum_of;
}

// Of a whole row: the largest logit, and the sum of e^(logit - top) in double.
struct RowSum {
  float top = -kInfinity;
  double total = 0;
  bool is_broken = false;

  void add(const BlockSum &block) {
    is_broken |= block.is_broken;
    if (block.total == 0) return;
    const float new_top = std::max(top, block.top);
    total = total * std::exp(double{top} - new_top) + block.total * std::exp(double{block.top} - new_top);
    top = new_top;
  }
  double log_total() const { return std::log(total); }
};

inline RowSum add_up_row(const float *x, int64_t V) {
  RowSum row_sum;
  for (int64_t k = 0; k < V; k += kBlock) row_sum.add(add_up(x + k, std::min(kBlock, V - k)));
  return row_sum;
}

LUCE_INLINE float largest_of(const float *x, int64_t n) {
  F32 most = splat(-kInfinity);
  for (int64_t k = 0; k < n; k += kLanes) most = max(most, load_logits(x + k, n - k));
  return largest(most);
}

constexpr int64_t kStep = 4 * kLanes;  // ids looked at together when few of them matter

inline int64_t first_equal(const float *x, int64_t V, float value) {
  for (int64_t k = 0; k < V; k += kStep) {
    const int64_t n = std::min(kStep, V - k);
    if (largest_of(x + k, n) == value) return std::find(x + k, x + k + n, value) - x;
  }
  return V;
}

struct Candidate {
  float key;
  int32_t id;
};

// By key, the larger first; among equals by id.
inline bool goes_before(const Candidate &a, const Candidate &b) {
  return a.key > b.key || (a.key == b.key && a.id < b.id);
}

// Appends the ids with x > least, in order of ids, to out[n...]; f(n) after each one makes room and moves `least`.
template <class F>
inline int64_t collect(const float *x, int64_t V, float least, Candidate *out, F make_room) {
  int64_t n = 0;
  for (int64_t k = 0; k < V; k += kStep) {
    const int64_t end = std::min(k + kStep, V);
    if (!(largest_of(x + k, end - k) > least)) continue;
    for (int64_t id = k; id < end; ++id) {
      if (!(x[id] > least)) continue;
      out[n++] = {x[id], static_cast<int32_t>(id)};
      make_room(n, least);
    }
  }
  return n;
}

inline int64_t collect_above(const float *x, int64_t V, float least, Candidate *out) {
  return collect(x, V, least, out, [](int64_t &, float &) {});
}

// The k first in order of goes_before(), sorted. `out` has room for V.
inline int64_t collect_largest(const float *x, int64_t V, int64_t k, Candidate *out) {
  const int64_t room = std::min(V, 2 * k + 1024);
  int64_t n = collect(x, V, -kInfinity, out, [=](int64_t &n, float &least) {
    if (n < room || room == V) return;
    std::nth_element(out, out + k - 1, out + n, goes_before);
    n = k;
    least = out[k - 1].key;  // of the ids still to come an equal is larger, and loses
  });
  k = std::min(k, n);
  std::partial_sort(out, out + k, out + n, goes_before);
  return k;
}

// Puts in front the fewest first in order whose probabilities p(candidate) add up to `mass`; returns their number.
template <class P>
inline int64_t keep_mass(Candidate *c, int64_t n, double mass, P p) {
  int64_t begin = 0, end = n;  // the last one that is kept lies in here
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(c + begin, c + middle, c + end, goes_before);
    double sum_of = 0;
    for (int64_t i = begin; i < middle; ++i) sum_of += p(c[i]);
    if (sum_of >= mass) {
      end = middle;
    } else {
      mass -= sum_of;
      begin = middle;
    }
  }
  return end;
}

// The candidates of a row. Until something has to look at them one by one they are all that the row allows.
class Candidates {
 public:
  Candidates(const float *x, int64_t V, const RowSum &row_sum, Candidate *room)
      : x_(x), V_(V), top_(row_sum.top), total_(row_sum.total), c_(room) {}

  void narrow(const luce_sample_row &row) {
    if (row.top_k > 0 && row.top_k < V_) keep_top_k(row.top_k);
    if (row.typical_p < 1) keep_typical(row.typical_p);
    if (row.top_p < 1) keep_top_p(row.top_p);
    if (row.min_p > 0) keep_min_p(row.min_p);
  }

  bool is_all() const { return is_all_; }
  const Candidate *begin() const { return c_; }
  const Candidate *end() const { return c_ + n_; }

 private:
  void keep_top_k(int64_t k) {
    n_ = collect_largest(x_, V_, k, c_);
    is_all_ = false;
    add_up_left();
  }

  void keep_typical(float mass) {
    if (is_all_) list_above(-kInfinity);
    const double log_total = std::log(total_) + top_;
    const auto surprise = [&](const Candidate &c) { return log_total - x_[c.id]; };
    double entropy = 0;
    for (int64_t i = 0; i < n_; ++i) entropy += probability(c_[i]) * surprise(c_[i]);
    for (int64_t i = 0; i < n_; ++i) c_[i].key = static_cast<float>(-std::fabs(surprise(c_[i]) - entropy));
    n_ = keep_mass(c_, n_, mass, [this](const Candidate &c) { return probability(c); });
    for (int64_t i = 0; i < n_; ++i) c_[i].key = x_[c_[i].id];
    add_up_left();
  }

  void keep_top_p(float mass) {
    if (is_all_) {
      // All that are smaller than this hold less than 1 - mass together; where rounding eats that, all are taken.
      const double least = top_ + std::log(std::max((1.0 - mass) / V_ * total_, 1e-300)) - 0.01;
      list_above(static_cast<float>(least));
    }
    n_ = keep_mass(c_, n_, mass, [this](const Candidate &c) { return probability(c); });
    add_up_left();
  }

  void keep_min_p(float share) {
    const float least = static_cast<float>(top_ + std::log(double{share}));
    if (is_all_) return list_above(std::nextafter(least, -kInfinity));
    n_ = std::remove_if(c_, c_ + n_, [least](const Candidate &c) { return c.key < least; }) - c_;
  }

  void list_above(float least) {
    n_ = collect_above(x_, V_, least, c_);
    is_all_ = false;
  }

  // The softmax of what is left.
  void add_up_left() {
    top_ = -kInfinity;
    for (int64_t i = 0; i < n_; ++i) top_ = std::max(top_, x_[c_[i].id]);
    total_ = 0;
    for (int64_t i = 0; i < n_; ++i) total_ += std::exp(double{x_[c_[i].id]} - top_);
  }
  double probability(const Candidate &c) const { return std::exp(x_[c.id] - top_) / total_; }

  const float *x_;
  const int64_t V_;
  float top_;
  double total_;
  Candidate *c_;
  int64_t n_ = 0;
  bool is_all_ = true;
};

}  // namespace luce::LUCE_ISA
