// launch.h: the one way in which a kernel is started, and the kernels by number. kernels.def lists them all.
#pragma once

#include "luce.h"
#include "vendor.h"

namespace luce {

enum KernelId : int {
#define LUCE_KERNEL(name) kernel_##name,
#include "kernels.def"
#undef LUCE_KERNEL
  kKernels
};

// Where the kernels of a context go.
struct Stream {
  cudaStream_t handle;
  bool is_dependent;  // a kernel may start before the one before it has ended: see vendor.h
};

// Puts a kernel on the stream; `args` holds the address of each of its parameters.
cudaError_t luce_launch(int kernel_id, dim3 grid, dim3 block, size_t shared_bytes, Stream stream, void **args);

// The chip generation (75, 80, 90 ...) that the kernels of this library were compiled for, as the device runs them.
cudaError_t compiled_generation(int *out);

}  // namespace luce
