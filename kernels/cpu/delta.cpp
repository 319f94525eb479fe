// delta.cpp: the gated delta rule as the recurrence itself, for chains and trees, and the states that it leaves.
//
// Columns of S (one for each value) never meet. A thread takes kWide vectors of them through all rows of a sequence:
// that tile stays near, is read once from its slot and goes back only where it is stored. A row costs one pass: what
// the row before it added, then S^T k and S^T q. Each row is the same arithmetic on its own path, so that chunks,
// company, restored states and trees change no bit; no chunked form, as all this is a twentieth of a prefill.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "math.h"
#include "state_rows.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int kWide = 4;
constexpr int64_t kTileColumns = kWide * kLanes;

// Columns of one head's S: element (d, column c) at data[d * stride + c].
struct Tile {
  float *data;
  int64_t stride;
};

// Where S is zero: a row of a tile, read again for every d.
float zeros[kTileColumns];

// V vectors of columns, of the last of which only the first n_last lanes exist if it is not kWhole.
template <int V, bool kWhole>
struct Columns {
  int64_t n_last;

  LUCE_INLINE F32 get(const float *p, int v) const {
    return kWhole || v < V - 1 ? load<F32>(p + v * kLanes) : load_first<F32>(p + v * kLanes, n_last);
  }
  LUCE_INLINE void put(float *p, int v, F32 x) const {
    if (kWhole || v < V - 1) {
      store(p + v * kLanes, x);
    } else {
      store_first(p + v * kLanes, x, n_last);
    }
  }

  // One pass over D rows of S: with kUpdate to = e * from + k u^T, with kDots adds S^T key and S^T query.
  template <bool kUpdate, bool kDots>
  LUCE_INLINE void pass(int64_t D, Tile from, Tile to, float e, const float *k, const F32 *u, const float *key,
                        const float *query, F32 *s_key, F32 *s_query) const {
    for (int64_t d = 0; d < D; ++d) {
      for (int v = 0; v < V; ++v) {
        F32 s = get(from.data + d * from.stride, v);
        if constexpr (kUpdate) {
          s = fma(splat(k[d]), u[v], e * s);
          put(to.data + d * to.stride, v, s);
        }
        if constexpr (kDots) {
          s_key[v] = fma(s, splat(key[d]), s_key[v]);
          s_query[v] = fma(s, splat(query[d]), s_query[v]);
        }
      }
    }
  }
};

float dot(const float *x, const float *y, int64_t D) {
  F32 part = {};
  for (int64_t d = 0; d < D; d += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, D - d);
    part = n == kLanes ? fma(load<F32>(x + d), load<F32>(y + d), part)
                       : fma(load_first<F32>(x + d, n), load_first<F32>(y + d, n), part);
  }
  return sum(part);
}

// What delta and delta_commit have in common: one head of one sequence, and a tile of its state.
template <class Args>
class Heads {
 public:
  Heads(const Args &a, const Worker &worker)
      : a_(a), rows_(a, a.state.ne[3], worker), D_(a.state.ne[1]), ratio_(a.state.ne[2] / a.k.ne[1]) {}

  const StateRows &rows() const { return rows_; }

 protected:
  int64_t key_head(int64_t h) const { return a_.order == LUCE_HEADS_TILED ? h % a_.k.ne[1] : h / ratio_; }
  const float *key(int64_t h, int64_t i) const { return row<const float>(a_.k, key_head(h), i); }

  static float of_head(const luce_tensor &t, int64_t h, int64_t i) {
    return row<const float>(t, h / t.ne[0], i)[h % t.ne[0]];
  }
  // e^g, in double: it multiplies itself over all rows to come, and its error with it.
  float decay(int64_t h, int64_t i) const {
    const double x = of_head(a_.alpha, h, i) + static_cast<const float *>(a_.dt.data)[h];
    const double softplus = x > 20 ? x : std::log1p(std::exp(x));
    return std::exp(static_cast<const float *>(a_.a.data)[h] * softplus);
  }

  Tile in_slot(int64_t slot, int64_t h, int64_t column) const {
    if (slot < 0) return {zeros, 0};
    const int64_t stride = a_.state.nb[1] / sizeof(float);
    return {reinterpret_cast<float *>(static_cast<char *>(a_.state.data) + slot * a_.state.nb[3] + h * a_.state.nb[2]) +
                column,
            stride};
  }

  const Args &a_;
  const StateRows rows_;
  const int64_t D_, ratio_;
};

class Delta : public Heads<luce_delta_args> {
 public:
  Delta(const luce_delta_args &a, const Worker &worker) : Heads(a, worker), worker_(worker) {}

  static int64_t tile_floats(const luce_delta_args &a) { return a.state.ne[1] * kTileColumns; }

  template <class C>
  void run(const C &columns, const Span &span, int64_t h, int64_t column) const {
    if (rows_.is_tree()) {
      tree(columns, span, h, column);
    } else {
      chain(columns, span, h, column);
    }
  }

 private:
  const float *query(int64_t h, int64_t i) const { return row<const float>(a_.q, key_head(h), i); }

  // Row i, whose S^T k and S^T q are there: its u, its out, and its e^g.
  template <int V, bool kWhole>
  float finish(const Columns<V, kWhole> &columns, int64_t h, int64_t i, int64_t column, const F32 *s_key,
               const F32 *s_query, F32 *u) const {
    const float e = decay(h, i), beta = times_sigmoid(splat(1.0f), splat(of_head(a_.beta, h, i)))[0];
    const F32 kq = splat(dot(key(h, i), query(h, i), D_));
    const float *value = row<const float>(a_.v, h, i) + column;
    float *out = row<float>(a_.out, h, i) + column;
    for (int v = 0; v < V; ++v) {
      u[v] = beta * (columns.get(value, v) - e * s_key[v]);
      columns.put(out, v, a_.scale * fma(kq, u[v], e * s_query[v]));
      if (a_.update.data != nullptr) columns.put(row<float>(a_.update, h, i) + column, v, u[v]);
    }
    return e;
  }

  template <int V, bool kWhole>
  void chain(const Columns<V, kWhole> &columns, const Span &span, int64_t h, int64_t column) const {
    const Tile near = {static_cast<float *>(worker_.scratch), kTileColumns};
    Tile from = in_slot(span.slot, h, column);
    F32 u[V] = {};
    float e = 0;
    for (int64_t i = span.begin; i < span.end; ++i) {
      F32 s_key[V] = {}, s_query[V] = {};
      if (i == span.begin) {
        columns.template pass<false, true>(D_, from, from, 0, nullptr, u, key(h, i), query(h, i), s_key, s_query);
      } else {
        const int64_t slot = rows_.out_slot(i - 1);
        const Tile to = slot < 0 ? near : in_slot(slot, h, column);
        columns.template pass<true, true>(D_, from, to, e, key(h, i - 1), u, key(h, i), query(h, i), s_key, s_query);
        from = to;
      }
      e = finish(columns, h, i, column, s_key, s_query, u);
    }
    const int64_t last = span.end - 1, slot = rows_.out_slot(last);
    if (slot < 0) return;
    columns.template pass<true, false>(D_, from, in_slot(slot, h, column), e, key(h, last), u, nullptr, nullptr,
                                       nullptr, nullptr);
  }

  // The state after each row stays in the workspace until the sequence is done.
  template <int V, bool kWhole>
  void tree(const Columns<V, kWhole> &columns, const Span &span, int64_t h, int64_t column) const {
    const auto after = [&](int64_t i) {
      const int64_t index = worker_.index * a_.row_seq.ne[0] + i;
      return Tile{static_cast<float *>(a_.workspace.data) + index * tile_floats(a_), kTileColumns};
    };
    for (int64_t i = span.begin; i < span.end; ++i) {
      const int64_t parent = rows_.parent(span, i);
      const Tile from = parent < 0 ? in_slot(span.slot, h, column) : after(parent);
      F32 s_key[V] = {}, s_query[V] = {}, u[V] = {};
      columns.template pass<false, true>(D_, from, from, 0, nullptr, u, key(h, i), query(h, i), s_key, s_query);
      const float e = finish(columns, h, i, column, s_key, s_query, u);
      columns.template pass<true, false>(D_, from, after(i), e, key(h, i), u, nullptr, nullptr, nullptr, nullptr);
    }
    rows_.for_stores(span, [&](int64_t i, int64_t slot) {
      const Tile from = after(i), to = in_slot(slot, h, column);
      for (int64_t d = 0; d < D_; ++d) {
        for (int v = 0; v < V; ++v)
          columns.put(to.data + d * to.stride, v, columns.get(from.data + d * from.stride, v));
      }
    });
  }

  const Worker &worker_;
};

class Commit : public Heads<luce_delta_commit_args> {
 public:
  Commit(const luce_delta_commit_args &a, const Worker &worker)
      : Heads(a, worker),
        near_{static_cast<float *>(worker.scratch), kTileColumns},
        path_(reinterpret_cast<int32_t *>(near_.data + a.state.ne[1] * kTileColumns)) {}

  template <int V, bool kWhole>
  void run(const Columns<V, kWhole> &columns, const Span &span, int64_t h, int64_t column) const {
    rows_.for_stores(span, [&](int64_t last, int64_t slot) {
      int32_t n = 0;
      for (int64_t i = last; i >= 0; i = rows_.parent(span, i)) path_[n++] = i;
      Tile from = in_slot(span.slot, h, column);
      while (n > 0) {
        const int64_t i = path_[--n];
        const Tile to = n > 0 ? near_ : in_slot(slot, h, column);
        F32 u[V];
        for (int v = 0; v < V; ++v) u[v] = columns.get(row<const float>(a_.update, h, i) + column, v);
        columns.template pass<true, false>(D_, from, to, decay(h, i), key(h, i), u, nullptr, nullptr, nullptr, nullptr);
        from = to;
      }
    });
  }

 private:
  const Tile near_;
  int32_t *const path_;
};

// A tile of at most V vectors: n columns from column c on.
template <int V, class Op>
void run_tile(const Op &op, const Span &span, int64_t h, int64_t c, int64_t n) {
  if constexpr (V > 1) {
    if (n <= (V - 1) * kLanes) return run_tile<V - 1>(op, span, h, c, n);
  }
  if (n == V * kLanes) return op.run(Columns<V, true>{kLanes}, span, h, c);
  op.run(Columns<V, false>{n - (V - 1) * kLanes}, span, h, c);
}

// Each tile of each head of each sequence, by one thread.
template <class Op>
void for_tiles(const Op &op, int64_t n_heads, int64_t n_columns, const Worker &worker) {
  int64_t unit = 0;
  op.rows().for_sequences([&](const Span &span) {
    for (int64_t h = 0; h < n_heads; ++h) {
      for (int64_t c = 0; c < n_columns; c += kTileColumns) {
        if (unit++ % worker.count != worker.index) continue;
        run_tile<kWide>(op, span, h, c, std::min(kTileColumns, n_columns - c));
      }
    }
  });
}

// What both have: k, alpha, a, dt, update, state and the rows.
template <class Args>
Verdict check_common(const Args &a) {
  if (!is_f32(a.k) || !is_f32(a.alpha) || !is_f32(a.a) || !is_f32(a.dt) || !is_f32(a.state)) {
    return unsupported("all values are F32, contiguous along ne[0]");
  }
  const int64_t n = a.k.ne[2], n_v = a.state.ne[2], dv = a.state.ne[0];
  if (a.k.ne[0] != a.state.ne[1] || n_v % a.k.ne[1] != 0) return bad("k is [d, n_k, n], state [dv, d, n_v, n_slots]");
  if (a.alpha.ne[0] * a.alpha.ne[1] != n_v || a.alpha.ne[2] != n) return bad("alpha has n_v values a row");
  if (a.a.ne[0] != n_v || a.dt.ne[0] != n_v) return bad("a and dt have n_v values");
  if (a.update.data != nullptr) {
    if (!is_f32(a.update)) return unsupported("update is F32");
    if (a.update.ne[0] != dv || a.update.ne[1] != n_v || a.update.ne[2] != n) return bad("update is [dv, n_v, n]");
  }
  if (a.order != LUCE_HEADS_TILED && a.order != LUCE_HEADS_GROUPED) return unsupported("order is TILED or GROUPED");
  if (a.k.ne[0] * kTileColumns * 4 + n * 4 > kScratchBytes) return unsupported("d exceeds the scratch of a thread");
  return check_state_rows(a, n);
}

Verdict check(const luce_delta_args &a) {
  if (!is_f32(a.q) || !is_f32(a.v) || !is_f32(a.beta) || !is_f32(a.out)) return unsupported("q, v, beta, out are F32");
  if (!same_shape(a.q, a.k) || !same_shape(a.v, a.out)) return bad("q and k have one shape, v and out too");
  if (a.v.ne[0] != a.state.ne[0] || a.v.ne[1] != a.state.ne[2] || a.v.ne[2] != a.k.ne[2])
    return bad("v is [dv, n_v, n]");
  if (!same_shape(a.alpha, a.beta)) return bad("alpha and beta have one shape");
  return check_common(a);
}

void run(const luce_delta_args &a, const Worker &worker) {
  for_tiles(Delta(a, worker), a.state.ne[2], a.state.ne[0], worker);
}

int64_t workspace(const luce_delta_args &a, int n_threads) {
  return a.parents.data == nullptr ? 0 : n_threads * a.row_seq.ne[0] * Delta::tile_floats(a) * 4;
}

Verdict check_commit(const luce_delta_commit_args &a) {
  if (a.update.data == nullptr) return bad("update is what luce_delta gave");
  return check_common(a);
}

void run_commit(const luce_delta_commit_args &a, const Worker &worker) {
  for_tiles(Commit(a, worker), a.state.ne[2], a.state.ne[0], worker);
}

}  // namespace

LUCE_KERNEL(delta, check, run, workspace)
LUCE_KERNEL(delta_commit, check_commit, run_commit)

}  // namespace luce::LUCE_ISA
