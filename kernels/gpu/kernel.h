// kernel.h: what an op is to the dispatcher, and what its kernels share.
//
// An op lives in one file and ends with
//     LUCE_OP(rms_norm, check, launch)               or, when it needs one,
//     LUCE_OP(attention, check, launch, workspace)
//   Verdict check(const luce_rms_norm_args &)              looks at types and shapes, never at data
//   void launch(const luce_rms_norm_args &, Launcher &)    puts its kernels on the stream; grids follow from bounds
//   int launch(const luce_call *, int n, Launcher &)       the same for the first of n calls, and for those after it
//   that
//                                                          it can do in the same launch: gives how many
//   int64_t workspace(const luce_rms_norm_args &)
// A kernel is `LUCE_GLOBAL(name)(parameters)` around a __device__ function, and has a line in kernels.def. It takes the
// op's arguments as they are, and the fault word.
#pragma once

#include "check.h"
#include "launch.h"
#include "luce.h"

#define LUCE_GLOBAL(name) extern "C" __global__ void luce_kernel_##name
// The same for blocks of `threads`, `blocks` of which are to fit on a multiprocessor.
#define LUCE_GLOBAL_WITHIN(name, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) luce_kernel_##name

// A device function that is no part of its caller: the compiler gives registers to each by itself.
#define LUCE_APART [[maybe_unused]] static __device__ __noinline__

namespace luce {

constexpr int kArrivals = 1 << 16;
constexpr int64_t kScratchBytes = 16 << 20;

// Puts the kernels of one op on a stream; the first error is kept.
struct Launcher {
  Stream stream;
  uint32_t *fault;  // the fault word, as the device sees it
  int n_multiprocessors;
  int64_t most_shared;  // bytes of shared memory that a block can have here
  uint32_t *arrivals;   // kArrivals zeros in device memory, which every kernel leaves as zeros
  float *scratch;       // kScratchBytes of device memory, of the kernel that runs
  cudaError_t error = cudaSuccess;

  template <class Args>
  void operator()(int kernel_id, dim3 grid, int n_threads, size_t shared_bytes, const Args &op_args) {
    if (error != cudaSuccess || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    void *args[] = {const_cast<Args *>(&op_args), &fault};
    error = luce_launch(kernel_id, grid, dim3(n_threads), shared_bytes, stream, args);
  }
};

constexpr unsigned blocks_of(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

struct Op {
  Verdict (*check)(const void *args);
  int (*launch)(const luce_call *calls, int n_calls, Launcher &launcher);
  int64_t (*workspace)(const void *args);
  int64_t (*given)(const void *args);  // bytes of workspace that the arguments have
};

template <class Args>
int64_t no_workspace(const Args &) {
  return 0;
}

template <class Args>
int64_t given_workspace(const Args &args) {
  if constexpr (requires { args.workspace; }) return args.workspace.data == nullptr ? 0 : args.workspace.ne[0];
  return 0;
}

template <class Args, Verdict (*check)(const Args &), auto launch,
          int64_t (*workspace)(const Args &) = no_workspace<Args>>
constexpr Op make_op() {
  return {[](const void *args) { return check(*static_cast<const Args *>(args)); },
          [](const luce_call *calls, int n_calls, Launcher &launcher) {
            if constexpr (requires { launch(calls, n_calls, launcher); }) {
              return launch(calls, n_calls, launcher);
            } else {
              launch(*static_cast<const Args *>(calls->args), launcher);
              return 1;
            }
          },
          [](const void *args) { return workspace(*static_cast<const Args *>(args)); },
          [](const void *args) { return given_workspace(*static_cast<const Args *>(args)); }};
}

// ---- on the device ----

// What every kernel that reads no weights begins with.
LUCE_DEVICE void begin() {
  let_next_start();
  wait_for_previous();
}

// The true number of rows: *n_rows, held within [0, bound].
LUCE_DEVICE int true_rows(const int32_t *n_rows, int64_t bound) {
  const int most = static_cast<int>(bound);
  return n_rows == nullptr ? most : min(max(*n_rows, 0), most);
}

// Element (0, i, j) of a tensor in LUCE_ROWS.
template <class T>
LUCE_DEVICE T *row(const luce_tensor &tensor, int64_t i, int64_t j = 0) {
  return reinterpret_cast<T *>(static_cast<char *>(tensor.data) + i * tensor.nb[1] + j * tensor.nb[2]);
}

template <class T>
LUCE_DEVICE const T *list(const luce_tensor &tensor) {
  return static_cast<const T *>(tensor.data);
}

// Sets the context's fault word, which lies in pinned memory; the first fault is kept.
LUCE_DEVICE void set_fault(uint32_t *word, luce_fault_code code) {
  volatile uint32_t *seen = word;
  if (*seen == LUCE_FAULT_NONE) *seen = code;
}

LUCE_DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}
LUCE_DEVICE float largest_of_warp(float x) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
  return x;
}

// Over the threads of a block, whose number is a multiple of kLanes; every thread has the result. `room` is shared, one
// value for each warp. The order depends on the number of threads alone.
template <class T, class Warp, class Join>
LUCE_DEVICE T over_block(T x, T *room, Warp of_warp, Join join) {
  x = of_warp(x);
  const int n_warps = blockDim.x / kLanes;
  if (n_warps == 1) return x;
  __syncthreads();
  if (threadIdx.x % kLanes == 0) room[threadIdx.x / kLanes] = x;
  __syncthreads();
  x = room[0];
  for (int i = 1; i < n_warps; ++i) x = join(x, room[i]);
  return x;
}

LUCE_DEVICE float sum_of_block(float x, float *room) {
  return over_block(x, room, sum_of_warp, [](float a, float b) { return a + b; });
}
LUCE_DEVICE float largest_of_block(float x, float *room) {
  return over_block(x, room, largest_of_warp, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace luce

#define LUCE_OP(op, ...)                                           \
  namespace luce {                                                 \
  extern const Op op_##op; /* dispatch.cu finds it by this name */ \
  const Op op_##op = make_op<luce_##op##_args, __VA_ARGS__>();     \
  }
