// attention_rows.h: which cells of its sequence each row of a step sees.
#pragma once

#include <algorithm>

#include "kernel.h"
#include "simd.h"

namespace luce::LUCE_ISA {

template <class T>
inline const T *list(const luce_tensor &tensor) {
  return static_cast<const T *>(tensor.data);
}

class AttentionRows {
 public:
  AttentionRows(const luce_attention_args &a, const Worker &worker)
      : a_(a), worker_(worker), page_size_(a.cell_pos.ne[0]), row_cell_(list<int32_t>(a.row_cell)) {}

  int64_t sequence(int64_t i) const { return list<int32_t>(a_.row_seq)[i]; }
  const int32_t *page_table(int64_t i) const { return row<const int32_t>(a_.page_table, sequence(i)); }

  // The last cell that any of the rows [begin, end) of one sequence may see; -1: there is none.
  int64_t last_cell(int64_t begin, int64_t end) const {
    if (sequence(begin) < 0 || sequence(begin) >= a_.page_table.ne[1]) {
      worker_.fault(LUCE_FAULT_ROW);
      return -1;
    }
    int64_t last = -1;
    for (int64_t i = begin; i < end; ++i) last = std::max(last, last_cell(i));
    const int64_t n_cells = a_.page_table.ne[0] * page_size_;
    if (last >= n_cells) worker_.fault(LUCE_FAULT_PAGE);
    return std::min(last, n_cells - 1);
  }

  // Fills seen[0, page_size) with whether row i sees each cell of the j-th page of its sequence, which is `page`.
  void look(int64_t i, int64_t j, int64_t page, int32_t *seen) const {
    const int32_t *cell_pos = row<const int32_t>(a_.cell_pos, page);
    const int64_t first_cell = j * page_size_;
    // As unsigned numbers a cell that is ahead of the row is further behind it than any window.
    const uint32_t row_pos = list<int32_t>(a_.row_pos)[i], window = a_.window > 0 ? a_.window : 0x80000000u;
    const auto in_window = [=](int64_t c) { return row_pos - static_cast<uint32_t>(cell_pos[c]) < window; };
    const int64_t n = std::clamp<int64_t>(past(i) - first_cell, 0, page_size_);
    for (int64_t c = 0; c < n; ++c) seen[c] = in_window(c);
    std::fill(seen + n, seen + page_size_, 0);
    if (is_tree()) {
      for_path(i, [&](int64_t ancestor) {
        const int64_t c = row_cell_[ancestor] - first_cell;
        if (c >= 0 && c < page_size_) seen[c] = in_window(c);
      });
    }
    if (a_.cells.data != nullptr) keep_chosen(i, first_cell, seen);
  }

 private:
  // Leaves in seen[0, page_size) only what is among the cells that row i looks at.
  void keep_chosen(int64_t i, int64_t first_cell, int32_t *seen) const {
    const uint32_t *begin = row<const uint32_t>(a_.cells, i), *end = begin + a_.cells.ne[0];  // -1 is the largest
    const uint32_t *next = std::lower_bound(begin, end, static_cast<uint32_t>(first_cell));
    for (int64_t c = 0; c < page_size_; ++c) {
      const bool is_chosen = next != end && *next == first_cell + c;
      seen[c] &= is_chosen;
      next += is_chosen;
    }
  }

  bool is_tree() const { return a_.parents.data != nullptr; }

  // Cells that row i sees whatever the draft tree.
  int64_t past(int64_t i) const {
    return is_tree() ? list<int32_t>(a_.seq_past)[sequence(i)] : row_cell_[i] + int64_t{1};
  }

  int64_t last_cell(int64_t i) const {
    int64_t last = past(i) - 1;
    if (is_tree()) for_path(i, [&](int64_t ancestor) { last = std::max<int64_t>(last, row_cell_[ancestor]); });
    return last;
  }

  // f(row) for row i of a draft tree and its ancestors.
  template <class F>
  void for_path(int64_t i, F f) const {
    const int32_t *parents = list<int32_t>(a_.parents);
    while (i >= 0) {
      f(i);
      if (parents[i] >= i) return worker_.fault(LUCE_FAULT_ROW);
      i = parents[i];
    }
  }

  const luce_attention_args &a_;
  const Worker &worker_;
  const int64_t page_size_;
  const int32_t *const row_cell_;
};

}  // namespace luce::LUCE_ISA
