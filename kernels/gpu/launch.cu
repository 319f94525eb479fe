// launch.cu: luce_launch for CUDA, and the table of kernels.

#include "launch.h"

// A __global__ function with C linkage has its host stub under its own name: to take its address any type will do.
#define LUCE_KERNEL(name) extern "C" void luce_kernel_##name(void);
#include "kernels.def"
#undef LUCE_KERNEL

namespace luce {
namespace {

const void *const kTable[] = {
#define LUCE_KERNEL(name) reinterpret_cast<const void *>(luce_kernel_##name),
#include "kernels.def"
#undef LUCE_KERNEL
};

constexpr size_t kSharedUnasked = 16 << 10;  // what a kernel may have beside its static arrays: 48 KiB hold both

}  // namespace

cudaError_t luce_launch(int kernel_id, dim3 grid, dim3 block, size_t shared_bytes, Stream stream, void **args) {
  const void *kernel = kTable[kernel_id];
  if (shared_bytes > kSharedUnasked) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  config.attrs = &dependent;
  config.numAttrs = stream.is_dependent ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, args);
}

cudaError_t compiled_generation(int *out) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kTable[0]);
  *out = error == cudaSuccess ? attributes.ptxVersion : 0;
  return error;
}

}  // namespace luce
