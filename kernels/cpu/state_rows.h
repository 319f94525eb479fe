// state_rows.h: which rows of a step belong to one sequence, what each comes after, and in which slots states lie.
#pragma once

#include "kernel.h"

namespace luce::LUCE_ISA {

// The rows [begin, end) of a sequence, and the slot of the state that they go on from; -1: zeros.
struct Span {
  int64_t begin, end, slot;
};

// What is out of range sets the fault word and counts as -1.
class StateRows {
 public:
  template <class Args>
  StateRows(const Args &a, int64_t n_slots, const Worker &worker)
      : worker_(worker),
        row_seq_(list(a.row_seq)),
        seq_slot_(list(a.seq_slot)),
        out_slots_(list(a.out_slots)),
        parents_(list(a.parents)),
        n_(true_rows(a.n_rows, a.row_seq.ne[0])),
        n_seqs_(a.seq_slot.ne[0]),
        n_slots_(n_slots) {}

  bool is_tree() const { return parents_ != nullptr; }

  // f(span) for each sequence of the step.
  template <class F>
  void for_sequences(F f) const {
    for (int64_t begin = 0, end; begin < n_; begin = end) {
      end = begin + 1;
      while (end < n_ && row_seq_[end] == row_seq_[begin]) ++end;
      f(Span{begin, end, slot_of(row_seq_[begin])});
    }
  }

  // The row that row i of the span comes after; -1: straight after the state.
  int64_t parent(const Span &span, int64_t i) const {
    if (!is_tree()) return i > span.begin ? i - 1 : -1;
    const int64_t p = parents_[i];
    if (p == -1 || (p >= span.begin && p < i)) return p;
    worker_.fault(LUCE_FAULT_ROW);
    return -1;
  }

  int64_t out_slot(int64_t i) const { return in_range(out_slots_[i]); }

  // f(i, slot) for each row of the span whose state is stored; last the one that takes the place of the span's own.
  template <class F>
  void for_stores(const Span &span, F f) const {
    for (const bool is_own : {false, true}) {
      for (int64_t i = span.begin; i < span.end; ++i) {
        const int64_t slot = out_slot(i);
        if (slot >= 0 && (slot == span.slot) == is_own) f(i, slot);
      }
    }
  }

 private:
  static const int32_t *list(const luce_tensor &tensor) { return static_cast<const int32_t *>(tensor.data); }

  int64_t slot_of(int32_t sequence) const {
    if (sequence >= 0 && sequence < n_seqs_) return in_range(seq_slot_[sequence]);
    worker_.fault(LUCE_FAULT_ROW);
    return -1;
  }

  int64_t in_range(int64_t slot) const {
    if (slot >= -1 && slot < n_slots_) return slot;
    worker_.fault(LUCE_FAULT_PAGE);
    return -1;
  }

  const Worker &worker_;
  const int32_t *row_seq_, *seq_slot_, *out_slots_, *parents_;
  const int64_t n_, n_seqs_, n_slots_;
};

template <class Args>
Verdict check_state_rows(const Args &a, int64_t n) {
  if (!is_i32(a.row_seq) || !is_i32(a.seq_slot) || !is_i32(a.out_slots)) {
    return unsupported("row_seq, seq_slot and out_slots are I32");
  }
  if (a.row_seq.ne[0] != n || a.out_slots.ne[0] != n) return bad("row_seq and out_slots have n values");
  if (a.parents.data == nullptr) return {};
  if (!is_i32(a.parents)) return unsupported("parents are I32");
  return a.parents.ne[0] == n ? Verdict{} : bad("parents have n values");
}

}  // namespace luce::LUCE_ISA
