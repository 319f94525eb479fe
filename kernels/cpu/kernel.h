// kernel.h: what an op is to the dispatcher, and what it may use while it runs.
//
// An op lives in one file, inside namespace luce::LUCE_ISA, and ends with
//     LUCE_KERNEL(rms_norm, check, run)               or, when it needs one,
//     LUCE_KERNEL(attention, check, run, workspace)
//   Verdict check(const luce_rms_norm_args &)
//     looks at types and shapes, never at data; called before any op of a run starts, on the calling thread
//   void run(const luce_rms_norm_args &, const Worker &)
//     called for each part of the work (share()), by whichever thread is free; the next op begins when all are done
//   int64_t workspace(const luce_rms_norm_args &, int n_threads)
// The file is compiled once for each instruction set, with LUCE_ISA = baseline, avx2, avx512.
#pragma once

#include <atomic>
#include <cstdint>

#include "check.h"
#include "luce.h"
#include "threads.h"

namespace luce {

constexpr int64_t kScratchBytes = 1 << 20;

// One part of an op, and what the thread that does it has.
struct Worker {
  int index;      // of the part
  int count;      // of parts: as many as threads
  void *scratch;  // kScratchBytes of this thread's own, 64-byte aligned; its contents do not outlive the op
  std::atomic<uint32_t> *fault_word;
  Threads *threads;

  // Returns when every part is here, each on a thread of its own: for ops that add up what several parts made.
  void barrier() const { threads->barrier(); }
  // Sets the context's fault word; the first fault is kept.
  void fault(luce_fault_code code) const {
    uint32_t none = LUCE_FAULT_NONE;
    fault_word->compare_exchange_strong(none, code);
  }
};

struct Range {
  int64_t begin, end;
};

// Part `index` of n items in `count` parts: contiguous, sizes differ by one at most.
inline Range share(int64_t n, int index, int count) {
  return {n * index / count, n * (index + 1) / count};
}
inline Range share(int64_t n, const Worker &worker) {
  return share(n, worker.index, worker.count);
}

// The true number of rows: *n_rows, held within [0, bound].
inline int64_t true_rows(const int32_t *n_rows, int64_t bound) {
  if (n_rows == nullptr) return bound;
  return *n_rows < 0 ? 0 : *n_rows < bound ? *n_rows : bound;
}

// Element (0, i, j) of a tensor in LUCE_ROWS.
template <class T>
inline T *row(const luce_tensor &tensor, int64_t i, int64_t j = 0) {
  return reinterpret_cast<T *>(static_cast<char *>(tensor.data) + i * tensor.nb[1] + j * tensor.nb[2]);
}

struct Kernel {
  Verdict (*check)(const void *args);
  void (*run)(const void *args, const Worker &worker);
  int64_t (*workspace)(const void *args, int n_threads);
  int64_t (*given)(const void *args);  // bytes of workspace that the arguments have
};

template <class Args>
int64_t no_workspace(const Args &, int) {
  return 0;
}

template <class Args>
int64_t given_workspace(const Args &args) {
  if constexpr (requires { args.workspace; }) return args.workspace.data == nullptr ? 0 : args.workspace.ne[0];
  return 0;
}

template <class Args, Verdict (*check)(const Args &), void (*run)(const Args &, const Worker &),
          int64_t (*workspace)(const Args &, int) = no_workspace<Args>>
constexpr Kernel make_kernel() {
  return {[](const void *args) { return check(*static_cast<const Args *>(args)); },
          [](const void *args, const Worker &worker) { run(*static_cast<const Args *>(args), worker); },
          [](const void *args, int n_threads) { return workspace(*static_cast<const Args *>(args), n_threads); },
          [](const void *args) { return given_workspace(*static_cast<const Args *>(args)); }};
}

}  // namespace luce

#define LUCE_KERNEL(op, ...)                                                \
  extern const Kernel kernel_##op; /* dispatch.cpp finds it by this name */ \
  const Kernel kernel_##op = make_kernel<luce_##op##_args, __VA_ARGS__>();
