// tokens.cpp: what becomes of tokens on the device: count (for penalties) and advance (a row's state).

#include <algorithm>

#include "kernel.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

// Threads share the vocabulary: each does all entries in order, for its own tokens.
void run_count(const luce_count_args &a, const Worker &worker) {
  const int32_t *slots = static_cast<const int32_t *>(a.slots.data);
  const int32_t *tokens = static_cast<const int32_t *>(a.tokens.data);
  const int32_t *amount = static_cast<const int32_t *>(a.amount.data);
  const int64_t V = a.counts.ne[0], n = true_rows(a.n_rows, a.tokens.ne[0]);
  const Range mine = share(V, worker);
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] < 0 || slots[i] >= a.counts.ne[1]) {
      worker.fault(LUCE_FAULT_ROW);
      continue;
    }
    int32_t *counts = row<int32_t>(a.counts, slots[i]);
    const int32_t token = tokens[i];
    if (token < 0) {
      std::fill(counts + mine.begin, counts + mine.end, 0);
    } else if (token >= V) {
      worker.fault(LUCE_FAULT_TOKEN);
    } else if (token >= mine.begin && token < mine.end) {
      counts[token] = amount[i] == 0 ? counts[token] | LUCE_COUNT_PROMPT : counts[token] + amount[i];
    }
  }
}

int32_t advance(const luce_advance_args &a, int32_t slot, int32_t token) {
  luce_row_state &state = static_cast<luce_row_state *>(a.state.data)[slot];
  if (state.finish != LUCE_RUNNING) return -1;
  if (state.forced_head < std::min<int64_t>(state.n_forced, a.forced.ne[0])) {
    token = row<const int32_t>(a.forced, slot)[state.forced_head++];
  }
  ++state.position;
  --state.n_left;
  const int32_t *stop_ids = row<const int32_t>(a.stop_ids, slot);
  const int32_t *end = stop_ids + std::clamp<int64_t>(state.n_stop, 0, a.stop_ids.ne[0]);
  if (std::find(stop_ids, end, token) != end) {
    state.finish = LUCE_STOP;
  } else if (state.n_left <= 0) {
    state.finish = LUCE_LENGTH;
  }
  return token;
}

// Rows are few and two of them may share a slot: one thread does all.
void run_advance(const luce_advance_args &a, const Worker &worker) {
  if (worker.index != 0) return;
  const int32_t *token = static_cast<const int32_t *>(a.token.data);
  const int32_t *slots = static_cast<const int32_t *>(a.slots.data);
  int32_t *emitted = static_cast<int32_t *>(a.emitted.data);
  const int64_t n = true_rows(a.n_rows, a.token.ne[0]);
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] == -1) {
      emitted[i] = token[i];
    } else if (slots[i] < 0 || slots[i] >= a.state.ne[0]) {
      worker.fault(LUCE_FAULT_ROW);
      emitted[i] = -1;
    } else {
      emitted[i] = advance(a, slots[i], token[i]);
    }
  }
}

}  // namespace

LUCE_KERNEL(count, check_count, run_count)
LUCE_KERNEL(advance, check_advance, run_advance)

}  // namespace luce::LUCE_ISA
