// attention.cuh: which cells of its sequence a row of a step sees, and how the parts of its softmax are kept and
// joined.
#pragma once

#include "cells.cuh"

namespace luce {

// A row's sequence is cut into splits of whole pages, counted from its first: about this many cells each.
constexpr int kSplitCells = 256;
constexpr int kAttentionThreads = 256;

inline int64_t split_pages(const luce_attention_args &a) {
  const int64_t page_size = a.cell_pos.ne[0];
  return page_size >= kSplitCells ? 1 : kSplitCells / page_size;
}
inline int64_t count_splits(const luce_attention_args &a) {
  return (a.page_table.ne[0] + split_pages(a) - 1) / split_pages(a);
}

// The arguments as kernels take them, which read them from memory at each launch: only what they need, in few lines.
// Strides are bytes.
struct AttentionArgs {
  const float *q;
  float *out, *workspace;
  const uint8_t *k_pages, *v_pages;
  const int32_t *n_rows, *row_seq, *row_cell, *row_pos;
  const int32_t *page_table, *cell_pos;
  const int32_t *parents, *seq_past;  // null: the rows are no tree
  const float *sinks;                 // null: none
  uint32_t *arrivals;  // zero, for each row of the launch and KV head: blocks that have put their splits down
  int64_t q_row, out_row, k_page, v_page;
  int32_t q_head, out_head, k_cell, k_head, v_cell, v_head, table_row, pos_page;
  int32_t first_row, bound;  // of the launch; of all rows
  int32_t n_heads, n_kv, D, Dv, k_type, v_type;
  int32_t page_size, n_pages, n_seqs, n_places, n_splits;  // pages of a sequence at most; of a row
  int32_t window;
  float scale, softcap;

  LUCE_DEVICE const float *q_of(int h, int i) const { return at(q, i * q_row + int64_t{h} * q_head); }
  LUCE_DEVICE float *out_of(int h, int i) const { return at(out, i * out_row + int64_t{h} * out_head); }
  LUCE_DEVICE const uint8_t *key(int c, int h, int page) const {
    return k_pages + page * k_page + int64_t{h} * k_head + c * k_cell;
  }
  LUCE_DEVICE const uint8_t *value(int c, int h, int page) const {
    return v_pages + page * v_page + int64_t{h} * v_head + c * v_cell;
  }
  LUCE_DEVICE int position_of(int c, int page) const { return at(cell_pos, int64_t{page} * pos_page)[c]; }

 private:
  template <class T>
  LUCE_DEVICE static T *at(T *p, int64_t offset) {
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(p) + offset);
  }
};

AttentionArgs flat_attention(const luce_attention_args &a, uint32_t *arrivals);

// The kernel of attention_pages.cu for these shapes, and its shared memory, of which a block can have `most_shared`;
// id -1: there is none.
struct PagesKernel {
  int id;
  int64_t shared_bytes;
};
PagesKernel pages_kernel(const luce_attention_args &a, int64_t most_shared);

// The first of the calls as one launch, where they are attention of one row, which attention_row.cu can do, and what
// prepares it: norms and rope of queries and keys, and kv_write. How many they are; 0: they do not begin so.
int launch_row_attention(const luce_call *calls, int n_calls, Launcher &launcher);

// One row, as it looks at its sequence. What it reads of the row it reads at once, also of a row that is not there.
struct Viewer {
  const AttentionArgs &a;
  int i, n_rows, sequence, own_cell, position, past;

  LUCE_DEVICE Viewer(const AttentionArgs &a, int i)
      : a(a),
        i(i),
        n_rows(true_rows(a.n_rows, a.bound)),
        sequence(a.row_seq[i]),
        own_cell(a.row_cell[i]),
        position(a.row_pos[i]) {
    past = !is_there() || !has_sequence() ? 0 : is_tree() ? a.seq_past[sequence] : own_cell + 1;
  }

  LUCE_DEVICE bool is_there() const { return i < n_rows; }
  LUCE_DEVICE bool is_tree() const { return a.parents != nullptr; }
  LUCE_DEVICE bool has_sequence() const { return sequence >= 0 && sequence < a.n_seqs; }

  // The page of place j; -1: there is none.
  LUCE_DEVICE int page(int j, uint32_t *fault) const {
    const auto *table = reinterpret_cast<const uint8_t *>(a.page_table) + int64_t{sequence} * a.table_row;
    const int page = reinterpret_cast<const int32_t *>(table)[j];
    if (page >= 0 && page < a.n_pages) return page;
    if (page != -1) set_fault(fault, LUCE_FAULT_PAGE);
    return -1;
  }

  // The last cell that it may see; -1: there is none.
  LUCE_DEVICE int last_cell(uint32_t *fault) const {
    if (!has_sequence()) {
      set_fault(fault, LUCE_FAULT_ROW);
      return -1;
    }
    int last = past - 1;
    if (is_tree()) {
      for (int at = i; at >= 0; at = parent(at, fault)) last = max(last, a.row_cell[at]);
    }
    const int n_cells = a.n_places * a.page_size;
    if (last >= n_cells) set_fault(fault, LUCE_FAULT_PAGE);
    return min(last, n_cells - 1);
  }

  // Whether it sees cell c of its sequence, whose logical position is given.
  LUCE_DEVICE bool sees(int c, int cell_position, uint32_t *fault) const {
    // As unsigned numbers a cell that is ahead of the row is further behind it than any window.
    const uint32_t distance = static_cast<uint32_t>(position) - static_cast<uint32_t>(cell_position);
    if (distance >= (a.window > 0 ? static_cast<uint32_t>(a.window) : 0x80000000u)) return false;
    if (c < past) return true;
    if (!is_tree()) return false;
    for (int at = i; at >= 0; at = parent(at, fault)) {
      if (a.row_cell[at] == c) return true;
    }
    return false;
  }

 private:
  LUCE_DEVICE int parent(int at, uint32_t *fault) const {
    const int up = a.parents[at];
    if (up < at) return up;
    set_fault(fault, LUCE_FAULT_ROW);
    return -1;
  }
};

LUCE_DEVICE float2 to_floats(__half2 x) {
  return __half22float2(x);
}
LUCE_DEVICE float2 to_floats(__nv_bfloat162 x) {
  return __bfloat1622float2(x);
}

// Those of 2 n bytes, as floats.
template <class Pair, class Bytes, int n>
LUCE_DEVICE void values_of(const Bytes &bytes, float (&x)[n]) {
  static_assert(sizeof bytes == 2 * n);
  alignas(sizeof bytes) Pair pairs[n / 2];
  *reinterpret_cast<Bytes *>(pairs) = bytes;
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const float2 both = to_floats(pairs[i]);
    x[2 * i] = both.x, x[2 * i + 1] = both.y;
  }
}

// n values from p on, 2 n bytes at once.
template <class Pair, int n>
LUCE_DEVICE void load_values(const uint8_t *p, float (&x)[n]) {
  if constexpr (n == 2) {
    values_of<Pair>(*reinterpret_cast<const uint32_t *>(p), x);
  } else if constexpr (n == 4) {
    values_of<Pair>(*reinterpret_cast<const uint2 *>(p), x);
  } else {
    values_of<Pair>(*reinterpret_cast<const uint4 *>(p), x);
  }
}

LUCE_DEVICE float logit_of(float product, float scale, float softcap) {
  const float x = product * scale;
  return softcap > 0 ? softcap * tanhf(x / softcap) : x;
}

// In the workspace, of each split of each row and head: the largest logit, the sum of e^(logit - top), and from
// kPartialValues on the values weighted alike.
constexpr int kPartialValues = 4;
LUCE_DEVICE float *partial_of(const AttentionArgs &a, int64_t i, int64_t h, int64_t split) {
  return a.workspace + ((i * a.n_heads + h) * a.n_splits + split) * (a.Dv + kPartialValues);
}

// What a split counts for, of a row whose largest logit is `most`.
LUCE_DEVICE float share_of(float top, float total, float most) {
  return total > 0 ? expf(top - most) : 0.0f;
}

// Rounds of kSplitCells cells that are joined one after the other: of one value, as it is kept in the workspace.
struct Joined {
  float most = -INFINITY, total = 0, y = 0;

  LUCE_DEVICE void add(float top, float sum, float value) {
    if (most == -INFINITY) {
      most = top, total = sum, y = value;
      return;
    }
    const float now = fmaxf(most, top), before = share_of(most, total, now), share = share_of(top, sum, now);
    most = now;
    total = fmaf(sum, share, total * before);
    y = fmaf(value, share, y * before);
  }
};

// The splits of a row of n rounds have 2 to the power of this many rounds: so they are few, and soon joined.
constexpr int kMostSplits = 48;
LUCE_DEVICE int log_rounds_of(int n) {
  int log = 0;
  while ((n - 1) >> log >= kMostSplits) ++log;
  return log;
}

// What the weighted values of a head are multiplied by at last.
LUCE_DEVICE float last_factor(const AttentionArgs &a, int h, float most, float total) {
  if (total <= 0) return 0;
  if (a.sinks == nullptr) return 1 / total;
  const float sink = a.sinks[h], top = fmaxf(most, sink), share = expf(most - top);
  return share / (total * share + expf(sink - top));
}

// Of a row that sees no cell.
LUCE_DEVICE void put_nothing(const AttentionArgs &a, int i, int h) {
  const int G = a.n_heads / a.n_kv;
  if (blockIdx.x != 0) return;
  for (int u = threadIdx.x; u < G * a.Dv; u += kAttentionThreads) a.out_of(h * G + u / a.Dv, i)[u % a.Dv] = 0;
}

// Called by whole blocks that have put their splits of a row and KV head into the workspace: whether this is the last
// one to come, which joins them. The row has n_own, of which a block took every gridDim.x-th.
LUCE_DEVICE bool is_last_to_come(const AttentionArgs &a, int i, int h, int n_own) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t *arrived = &a.arrivals[(i - a.first_row) * a.n_kv + h];
    is_last = atomicAdd(arrived, 1u) + 1 == min(gridDim.x, static_cast<uint32_t>(n_own));
    if (is_last) *arrived = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

}  // namespace luce

// X(name of a cache type, its pairs, values of a head, heads to a KV head): the forms of attention_pages.cu and
// attention_row.cu, in the order of kernels.def.
#define LUCE_ATTENTION_FORMS_OF(X, name, Pair, D) \
  X(name, Pair, D, 1)                             \
  X(name, Pair, D, 2)                             \
  X(name, Pair, D, 3)                             \
  X(name, Pair, D, 4)                             \
  X(name, Pair, D, 8)
#define LUCE_ATTENTION_FORMS(X)                         \
  LUCE_ATTENTION_FORMS_OF(X, f16, __half2, 64)          \
  LUCE_ATTENTION_FORMS_OF(X, f16, __half2, 128)         \
  LUCE_ATTENTION_FORMS_OF(X, f16, __half2, 256)         \
  LUCE_ATTENTION_FORMS_OF(X, bf16, __nv_bfloat162, 64)  \
  LUCE_ATTENTION_FORMS_OF(X, bf16, __nv_bfloat162, 128) \
  LUCE_ATTENTION_FORMS_OF(X, bf16, __nv_bfloat162, 256)
