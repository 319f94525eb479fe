// attention.cuh: which cells of its sequence a row of a step sees, and how the parts of its softmax are kept.
#pragma once

#include "cells.cuh"

namespace luce {

// A row's sequence is cut into splits of whole pages, counted from its first: about this many cells each.
constexpr int kSplitCells = 256;

inline int64_t split_pages(const luce_attention_args &a) {
  const int64_t page_size = a.cell_pos.ne[0];
  return page_size >= kSplitCells ? 1 : kSplitCells / page_size;
}
inline int64_t count_splits(const luce_attention_args &a) {
  return (a.page_table.ne[0] + split_pages(a) - 1) / split_pages(a);
}

// The kernel of attention_pages.cu for these shapes, and its shared memory; id -1: there is none.
struct PagesKernel {
  int id;
  int64_t shared_bytes;
};
PagesKernel pages_kernel(const luce_attention_args &a);

// One row, as it looks at its sequence.
struct Viewer {
  const luce_attention_args &a;
  int i, sequence, past;

  LUCE_DEVICE Viewer(const luce_attention_args &a, int i) : a(a), i(i), sequence(list<int32_t>(a.row_seq)[i]) {
    past = !has_sequence() ? 0 : is_tree() ? list<int32_t>(a.seq_past)[sequence] : list<int32_t>(a.row_cell)[i] + 1;
  }

  LUCE_DEVICE bool is_tree() const { return a.parents.data != nullptr; }
  LUCE_DEVICE bool has_sequence() const { return sequence >= 0 && sequence < a.page_table.ne[1]; }
  LUCE_DEVICE const int32_t *page_table() const { return row<const int32_t>(a.page_table, sequence); }

  // The last cell that it may see; -1: there is none.
  LUCE_DEVICE int last_cell(uint32_t *fault) const {
    if (!has_sequence()) {
      set_fault(fault, LUCE_FAULT_ROW);
      return -1;
    }
    int last = past - 1;
    if (is_tree()) {
      for (int at = i; at >= 0; at = parent(at, fault)) last = max(last, list<int32_t>(a.row_cell)[at]);
    }
    const int n_cells = static_cast<int>(a.page_table.ne[0] * a.cell_pos.ne[0]);
    if (last >= n_cells) set_fault(fault, LUCE_FAULT_PAGE);
    return min(last, n_cells - 1);
  }

  // Whether it sees cell c of its sequence, whose logical position is given.
  LUCE_DEVICE bool sees(int c, int position, uint32_t *fault) const {
    // As unsigned numbers a cell that is ahead of the row is further behind it than any window.
    const uint32_t distance = static_cast<uint32_t>(list<int32_t>(a.row_pos)[i]) - static_cast<uint32_t>(position);
    if (distance >= (a.window > 0 ? static_cast<uint32_t>(a.window) : 0x80000000u)) return false;
    if (c < past) return true;
    if (!is_tree()) return false;
    for (int at = i; at >= 0; at = parent(at, fault)) {
      if (list<int32_t>(a.row_cell)[at] == c) return true;
    }
    return false;
  }

 private:
  LUCE_DEVICE int parent(int at, uint32_t *fault) const {
    const int up = list<int32_t>(a.parents)[at];
    if (up < at) return up;
    set_fault(fault, LUCE_FAULT_ROW);
    return -1;
  }
};

// In the workspace, of each split of each row and head: the largest logit, the sum of e^(logit - top), and the values
// weighted alike.
LUCE_DEVICE float *partial_of(const luce_attention_args &a, int64_t i, int64_t h, int64_t split, int64_t n_splits) {
  return static_cast<float *>(a.workspace.data) + ((i * a.q.ne[1] + h) * n_splits + split) * (a.v_pages.ne[0] + 2);
}

LUCE_DEVICE float logit_of(float product, float scale, float softcap) {
  const float x = product * scale;
  return softcap > 0 ? softcap * tanhf(x / softcap) : x;
}

}  // namespace luce
