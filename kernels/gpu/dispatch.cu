// dispatch.cu: the exported functions. luce_run checks all calls, then puts their kernels on the context's stream and
// returns: it allocates nothing and waits for nothing, so it can be captured.
//
// A context is used by one thread at a time, for which its device is made current.

#include <cstdio>
#include <new>

#include "attention.cuh"
#include "context.h"

using luce::Op;
using luce::Verdict;

// Weak: an op of the contract that no file implements is a null address here and LUCE_UNSUPPORTED when called.
#define LUCE_DECLARE(op) extern const Op op_##op __attribute__((weak));
namespace luce {
LUCE_OPS(LUCE_DECLARE)
}

namespace {

#define LUCE_ROW(op) {#op, &luce::op_##op},
const struct {
  const char *name;
  const Op *op;
} kOps[] = {LUCE_OPS(LUCE_ROW)};

thread_local std::string open_error;

// Whether this call can run here; if not, why.
luce_status check(luce_context &context, int32_t op, const void *args) {
  if (op < 0 || op >= LUCE_N_OPS) return context.fail(LUCE_BAD_ARGUMENT, "there is no op " + std::to_string(op));
  const std::string name = kOps[op].name;
  if (kOps[op].op == nullptr) return context.fail(LUCE_UNSUPPORTED, "the CUDA library has no " + name);
  if (args == nullptr) return context.fail(LUCE_BAD_ARGUMENT, name + ": no arguments");
  const Verdict verdict = kOps[op].op->check(args);
  return verdict.status == LUCE_OK ? LUCE_OK : context.fail(verdict.status, name + ": " + verdict.message);
}

// The same, and whether it has the workspace to run with.
luce_status check_run(luce_context &context, int32_t op, const void *args) {
  const luce_status status = check(context, op, args);
  if (status != LUCE_OK) return status;
  if (kOps[op].op->given(args) >= kOps[op].op->workspace(args)) return LUCE_OK;
  return context.fail(LUCE_BAD_ARGUMENT, std::string(kOps[op].name) + ": workspace is too small");
}

luce_status refuse(luce_status status, std::string message) {
  open_error = std::move(message);
  return status;
}

void free_all(uint32_t *fault, uint32_t *arrivals, float *scratch) {
  cudaFreeHost(fault);
  cudaFree(arrivals);
  cudaFree(scratch);
}

luce_status no_device(const char *what, cudaError_t error) {
  return refuse(LUCE_NO_DEVICE, std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

extern "C" {

uint32_t luce_abi_version(void) {
  return LUCE_ABI_VERSION;
}

luce_status luce_open(const luce_open_args *args, luce_context **out) {
  *out = nullptr;
  int n_devices = 0;
  cudaError_t error = cudaGetDeviceCount(&n_devices);
  if (error != cudaSuccess) return no_device("no CUDA device can be used", error);
  if (args->device < 0 || args->device >= n_devices) {
    return refuse(LUCE_NO_DEVICE, "there is no device " + std::to_string(args->device) + ", the driver has " +
                                      std::to_string(n_devices));
  }
  if (args->isa < 0 || args->n_threads < 0) return refuse(LUCE_BAD_ARGUMENT, "isa or n_threads is out of range");
  cudaDeviceProp properties;
  int compiled = 0;
  uint32_t *fault = nullptr, *arrivals = nullptr;
  float *scratch = nullptr;
  if ((error = cudaSetDevice(args->device)) != cudaSuccess ||
      (error = cudaGetDeviceProperties(&properties, args->device)) != cudaSuccess ||
      (error = cudaHostAlloc(&fault, sizeof *fault, cudaHostAllocMapped)) != cudaSuccess) {
    return no_device("cannot open the device", error);
  }
  *fault = LUCE_FAULT_NONE;
  if ((error = cudaMalloc(&arrivals, luce::kArrivals * sizeof *arrivals)) != cudaSuccess ||
      (error = cudaMemset(arrivals, 0, luce::kArrivals * sizeof *arrivals)) != cudaSuccess ||
      (error = cudaMalloc(&scratch, luce::kScratchBytes)) != cudaSuccess ||
      (error = luce::compiled_generation(&compiled)) != cudaSuccess) {
    free_all(fault, arrivals, scratch);
    return no_device("the library has no kernels for this device", error);
  }
  const int chip = properties.major * 10 + properties.minor;
  const int generation = args->isa == 0 ? chip : args->isa;
  if (generation > chip) {
    free_all(fault, arrivals, scratch);
    return refuse(LUCE_NO_DEVICE,
                  "this device is of generation " + std::to_string(chip) + ", not " + std::to_string(generation));
  }
  const bool is_dependent = generation >= 90 && compiled >= 90;
  luce_context *context = new (std::nothrow) luce_context{args->device,
                                                          generation,
                                                          properties.multiProcessorCount,
                                                          static_cast<int64_t>(properties.sharedMemPerBlockOptin),
                                                          {},
                                                          {static_cast<cudaStream_t>(args->stream), is_dependent},
                                                          fault,
                                                          arrivals,
                                                          scratch};
  if (context == nullptr) {
    free_all(fault, arrivals, scratch);
    return refuse(LUCE_NO_MEMORY, "no memory for a context");
  }
  std::snprintf(context->name, sizeof context->name, "%.63s", properties.name);
  *out = context;
  return LUCE_OK;
}

void luce_close(luce_context *context) {
  if (context != nullptr) free_all(context->fault, context->arrivals, context->scratch);
  delete context;
}

luce_status luce_get_info(luce_context *context, luce_info *out) {
  *out = {context->generation, 1, {}};
  std::snprintf(out->name, sizeof out->name, "%s", context->name);
  return LUCE_OK;
}

const char *luce_error(luce_context *context) {
  return context ? context->error.c_str() : open_error.c_str();
}

uint32_t luce_take_fault(luce_context *context) {
  volatile uint32_t *word = context->fault;
  const uint32_t fault = *word;
  *word = LUCE_FAULT_NONE;
  return fault;
}

luce_status luce_workspace_bytes(luce_context *context, int32_t op, const void *args, int64_t *out_bytes) {
  *out_bytes = 0;
  const luce_status status = check(*context, op, args);
  if (status == LUCE_OK) *out_bytes = kOps[op].op->workspace(args);
  return status;
}

luce_status luce_run(luce_context *context, const luce_call *calls, int32_t n_calls) {
  for (int32_t i = 0; i < n_calls; ++i) {
    const luce_status status = check_run(*context, calls[i].op, calls[i].args);
    if (status != LUCE_OK) return context->fail(status, "call " + std::to_string(i) + ": " + context->error);
  }
  luce::Launcher launcher = {context->stream,      context->fault,    context->n_multiprocessors,
                             context->most_shared, context->arrivals, context->scratch};
  launcher.error = cudaSetDevice(context->device);
  for (int32_t i = 0; i < n_calls;) {
    int n_done = luce::launch_row_attention(calls + i, n_calls - i, launcher);
    if (n_done == 0) n_done = kOps[calls[i].op].op->launch(calls + i, n_calls - i, launcher);
    if (launcher.error == cudaSuccess) {
      i += n_done;
      continue;
    }
    return context->fail(LUCE_FAULT, "call " + std::to_string(i) + ": " + kOps[calls[i].op].name + ": " +
                                         cudaGetErrorString(launcher.error));
  }
  return LUCE_OK;
}

luce_status luce_mailbox_serve(luce_context *context, int32_t *, const luce_call *, int32_t) {
  return context->fail(LUCE_UNSUPPORTED, "a mailbox is served by the CPU library");
}

void luce_mailbox_stop(luce_context *, int32_t *) {}

#define LUCE_DEFINE(op)                                                        \
  luce_status luce_##op(luce_context *context, const luce_##op##_args *args) { \
    const luce_call call = {LUCE_OP_##op, args};                               \
    return luce_run(context, &call, 1);                                        \
  }
LUCE_OPS(LUCE_DEFINE)

}  // extern "C"
