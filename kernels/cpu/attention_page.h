// attention_page.h: one page of keys and values against M queries: the arithmetic of attention.
//
// Keys are turned so that lanes are cells: a logit is one chain of products over D whatever the number of queries, and
// values are added cell by cell. So a query's bits do not depend on who else is in the tile.
#pragma once

#include <algorithm>
#include <utility>

#include "cells.h"
#include "math.h"

namespace luce::LUCE_ISA {

constexpr int kQueryBlock = 6;  // by two vectors: twelve sums, which the registers of every instruction set hold
constexpr float kNothingSeen = -3e38f;

inline int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <int kStep, int... k>
LUCE_INLINE void swap_blocks(F32 (&x)[kLanes], std::integer_sequence<int, k...>) {
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const F32 a = x[i], b = x[i + kStep];
    x[i] = __builtin_shufflevector(a, b, (k & kStep ? kLanes + k - kStep : k)...);
    x[i + kStep] = __builtin_shufflevector(a, b, (k & kStep ? kLanes + k : k + kStep)...);
  }
}

LUCE_INLINE void transpose(F32 (&x)[kLanes]) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>();
  swap_blocks<1>(x, lanes);
  swap_blocks<2>(x, lanes);
  if constexpr (kLanes > 4) swap_blocks<4>(x, lanes);
  if constexpr (kLanes > 8) swap_blocks<8>(x, lanes);
}

// A page's cells [begin, end) of one head as kt[d * stride + c]; begin is a multiple of kLanes.
template <int kType>
void load_keys(const luce_tensor &pages, int64_t page, int64_t head, Range cells, float *kt, int64_t stride) {
  using Reader = CellReader<kType>;
  const int64_t D = pages.ne[0];
  for (int64_t c = cells.begin; c < cells.end; c += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, pages.ne[1] - c);
    for (int64_t d = 0; d < D; d += kLanes) {
      F32 x[kLanes];
      const int64_t rest = D - d;
      for (int j = 0; j < kLanes; ++j) {
        const char *from = cell(pages, c + (j < n ? j : n - 1), head, page);
        x[j] = rest >= kLanes ? Reader::load(from, d) : Reader::load_first(from, d, rest);
      }
      transpose(x);
      float *to = kt + d * stride + c;
      for (int j = 0; j < kLanes; ++j) {
        if (j < rest) store(to + j * stride, x[j]);
      }
    }
  }
}

// A page's cells of one head as v[c * stride + d]. A cell that nobody sees may hold anything: it becomes 0.
template <int kType>
void load_values(const luce_tensor &pages, int64_t page, int64_t head, Range cells, const int32_t *seen, float *v,
                 int64_t stride) {
  using Reader = CellReader<kType>;
  const int64_t D = pages.ne[0];
  for (int64_t c = cells.begin; c < cells.end; ++c) {
    const char *from = cell(pages, c, head, page);
    float *to = v + c * stride;
    for (int64_t d = 0; d < D; d += kLanes) {
      const int64_t rest = D - d;
      const F32 x = rest >= kLanes ? Reader::load(from, d) : Reader::load_first(from, d, rest);
      store(to + d, seen[c] ? x : F32{});
    }
  }
}

// Asks for a page of one head before it is needed: pages lie anywhere, so the chip's own prefetch begins anew at each.
inline void prefetch(const luce_tensor &pages, int64_t page, int64_t head) {
  const char *begin = cell(pages, 0, head, page), *end = cell(pages, pages.ne[1], head, page);
  for (const char *line = begin; line < end; line += 64) __builtin_prefetch(line, 0, 2);
}

// Calls f with std::integral_constant<int, type>.
template <class F>
LUCE_INLINE void with_type(int32_t type, F f) {
  switch (type) {
    case LUCE_F32:
      return f(std::integral_constant<int, LUCE_F32>());
    case LUCE_F16:
      return f(std::integral_constant<int, LUCE_F16>());
    case LUCE_BF16:
      return f(std::integral_constant<int, LUCE_BF16>());
    case LUCE_Q8_0:
      return f(std::integral_constant<int, LUCE_Q8_0>());
    default:
      return f(std::integral_constant<int, LUCE_Q4_0>());
  }
}

// s[m * stride + c] = sum_d q[m][d] * kt[d * stride + c] for kQ queries and the cells of kV vectors.
template <int kQ, int kV>
void score_block(const float *const *q, const float *kt, int64_t D, int64_t stride, float *s) {
  F32 sums[kQ][kV];
  for (int m = 0; m < kQ; ++m) {
    for (int v = 0; v < kV; ++v) sums[m][v] = F32{};
  }
  for (int64_t d = 0; d < D; ++d) {
    F32 k[kV];
    for (int v = 0; v < kV; ++v) k[v] = load<F32>(kt + d * stride + v * kLanes);
    for (int m = 0; m < kQ; ++m) {
      const F32 x = splat(q[m][d]);
      for (int v = 0; v < kV; ++v) sums[m][v] = fma(x, k[v], sums[m][v]);
    }
  }
  for (int m = 0; m < kQ; ++m) {
    for (int v = 0; v < kV; ++v) store(s + m * stride + v * kLanes, sums[m][v]);
  }
}

// o[m * o_stride + d] += sum_c p[m * p_stride + c] * v[c * o_stride + d] for kQ queries and the values of kV vectors.
template <int kQ, int kV>
void value_block(const float *p, int64_t p_stride, const float *v, Range cells, float *o, int64_t o_stride) {
  F32 sums[kQ][kV];
  for (int m = 0; m < kQ; ++m) {
    for (int j = 0; j < kV; ++j) sums[m][j] = load<F32>(o + m * o_stride + j * kLanes);
  }
  for (int64_t c = cells.begin; c < cells.end; ++c) {
    F32 x[kV];
    for (int j = 0; j < kV; ++j) x[j] = load<F32>(v + c * o_stride + j * kLanes);
    for (int m = 0; m < kQ; ++m) {
      const F32 weight = splat(p[m * p_stride + c]);
      for (int j = 0; j < kV; ++j) sums[m][j] = fma(weight, x[j], sums[m][j]);
    }
  }
  for (int m = 0; m < kQ; ++m) {
    for (int j = 0; j < kV; ++j) store(o + m * o_stride + j * kLanes, sums[m][j]);
  }
}

// f(std::integral_constant<int, n>) for the blocks of at most kQueryBlock that M queries make: (first, block).
template <class F, int... n>
LUCE_INLINE void for_query_blocks(int64_t M, F f, std::integer_sequence<int, n...>) {
  for (int64_t m = 0; m < M; m += kQueryBlock) {
    const int64_t size = std::min<int64_t>(kQueryBlock, M - m);
    (void)((size == n + 1 && (f(m, std::integral_constant<int, n + 1>()), true)) || ...);
  }
}

inline void scores(const float *const *q, int64_t M, const float *kt, int64_t D, Range cells, int64_t stride,
                   float *s) {
  for_query_blocks(
      M,
      [&](int64_t m, auto kQ) {
        int64_t c = cells.begin;
        for (; c + kLanes < cells.end; c += 2 * kLanes) {
          score_block<kQ(), 2>(q + m, kt + c, D, stride, s + m * stride + c);
        }
        if (c < cells.end) score_block<kQ(), 1>(q + m, kt + c, D, stride, s + m * stride + c);
      },
      std::make_integer_sequence<int, kQueryBlock>());
}

inline void add_values(const float *p, int64_t M, int64_t p_stride, const float *v, Range cells, float *o,
                       int64_t o_stride) {
  for_query_blocks(
      M,
      [&](int64_t m, auto kQ) {
        const float *weights = p + m * p_stride;
        float *to = o + m * o_stride;
        int64_t d = 0;
        for (; d + 2 * kLanes <= o_stride; d += 2 * kLanes) {
          value_block<kQ(), 2>(weights, p_stride, v + d, cells, to + d, o_stride);
        }
        if (d < o_stride) value_block<kQ(), 1>(weights, p_stride, v + d, cells, to + d, o_stride);
      },
      std::make_integer_sequence<int, kQueryBlock>());
}

// One query's softmax so far: its largest logit, and the sum of e^(logit - top); o is scaled alike.
struct Softmax {
  float top = kNothingSeen;
  float total = 0;
};

// Takes a page's dot products s to weights e^(logit - top), 0 where not seen, and scales what came before.
LUCE_INLINE void soften(float *s, const int32_t *seen, Range cells, float scale, float softcap, Softmax &softmax,
                        float *o, int64_t o_stride) {
  F32 top = splat(softmax.top);
  for (int64_t c = cells.begin; c < cells.end; c += kLanes) {
    F32 x = load<F32>(s + c) * scale;
    if (softcap > 0) x = softcap * tanh(x / softcap);
    x = load<I32>(seen + c) != 0 ? x : splat(-__builtin_inff());
    store(s + c, x);
    top = max(top, x);
  }
  const float new_top = largest(top);
  if (new_top > softmax.top) {
    const float shrink = exp(splat(softmax.top - new_top))[0];
    softmax = {new_top, softmax.total * shrink};
    for (int64_t d = 0; d < o_stride; d += kLanes) store(o + d, load<F32>(o + d) * shrink);
  }
  F32 total = {};
  for (int64_t c = cells.begin; c < cells.end; c += kLanes) {
    const F32 p = exp(load<F32>(s + c) - softmax.top);
    store(s + c, p);
    total += p;
  }
  softmax.total += sum(total);
}

// Adds a block's softmax and weighted values to those of the blocks before it.
inline void merge(const Softmax &block, const float *o, Softmax &total, float *out, int64_t Dv) {
  if (block.total == 0) return;
  const float top = std::max(total.top, block.top);
  const float old_share = exp(splat(total.top - top))[0], new_share = exp(splat(block.top - top))[0];
  total = {top, total.total * old_share + block.total * new_share};
  for (int64_t d = 0; d < Dv; ++d) out[d] = out[d] * old_share + o[d] * new_share;
}

}  // namespace luce::LUCE_ISA
