// tokens.cu: what becomes of tokens on the device: count (for penalties) and advance (a row's state).

#include "kernel.h"
#include "ops.h"

namespace luce {
namespace {

constexpr int kCountThreads = 1024;

void launch_count(const luce_count_args &a, Launcher &launcher) {
  launcher(kernel_count, dim3(1), kCountThreads, 0, a);
}

void launch_advance(const luce_advance_args &a, Launcher &launcher) {
  launcher(kernel_advance, dim3(1), kLanes, 0, a);
}

LUCE_DEVICE int advance_row(const luce_advance_args &a, int slot, int token) {
  luce_row_state &state = static_cast<luce_row_state *>(a.state.data)[slot];
  if (state.finish != LUCE_RUNNING) return -1;
  if (state.forced_head < min(state.n_forced, static_cast<int>(a.forced.ne[0]))) {
    token = row<const int32_t>(a.forced, slot)[state.forced_head++];
  }
  ++state.position;
  --state.n_left;
  const int32_t *stop_ids = row<const int32_t>(a.stop_ids, slot);
  const int n_stop = min(max(state.n_stop, 0), static_cast<int>(a.stop_ids.ne[0]));
  bool is_stop = false;
  for (int j = 0; j < n_stop; ++j) is_stop |= stop_ids[j] == token;
  if (is_stop) {
    state.finish = LUCE_STOP;
  } else if (state.n_left <= 0) {
    state.finish = LUCE_LENGTH;
  }
  return token;
}

}  // namespace

// Threads share the vocabulary: each does all entries in order, for its own tokens.
LUCE_GLOBAL(count)(const __grid_constant__ luce_count_args a, uint32_t *fault) {
  begin();
  const int V = static_cast<int>(a.counts.ne[0]), n = true_rows(a.n_rows, a.tokens.ne[0]);
  const int32_t *slots = list<int32_t>(a.slots), *tokens = list<int32_t>(a.tokens), *amount = list<int32_t>(a.amount);
  for (int i = 0; i < n; ++i) {
    if (slots[i] < 0 || slots[i] >= a.counts.ne[1]) {
      set_fault(fault, LUCE_FAULT_ROW);
      continue;
    }
    int32_t *counts = row<int32_t>(a.counts, slots[i]);
    const int token = tokens[i];
    if (token < 0) {
      for (int v = threadIdx.x; v < V; v += kCountThreads) counts[v] = 0;
    } else if (token >= V) {
      set_fault(fault, LUCE_FAULT_TOKEN);
    } else if (token % kCountThreads == static_cast<int>(threadIdx.x)) {
      counts[token] = amount[i] == 0 ? counts[token] | LUCE_COUNT_PROMPT : counts[token] + amount[i];
    }
  }
}

// Rows are few and two of them may share a slot: a thread does all rows of its slots, in order.
LUCE_GLOBAL(advance)(const __grid_constant__ luce_advance_args a, uint32_t *fault) {
  begin();
  const int n = true_rows(a.n_rows, a.token.ne[0]);
  const int32_t *token = list<int32_t>(a.token), *slots = list<int32_t>(a.slots);
  int32_t *emitted = static_cast<int32_t *>(a.emitted.data);
  for (int i = 0; i < n; ++i) {
    const int slot = slots[i];
    const bool is_there = slot >= 0 && slot < a.state.ne[0];
    if ((is_there ? slot % kLanes : 0) != static_cast<int>(threadIdx.x)) continue;
    if (slot == -1) {
      emitted[i] = token[i];
    } else if (!is_there) {
      set_fault(fault, LUCE_FAULT_ROW);
      emitted[i] = -1;
    } else {
      emitted[i] = advance_row(a, slot, token[i]);
    }
  }
}

}  // namespace luce

LUCE_OP(count, check_count, launch_count)
LUCE_OP(advance, check_advance, launch_advance)
