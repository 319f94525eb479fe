// dispatch.cpp: the exported functions. A context has one table of kernels, for its instruction set; luce_run checks
// all calls, then the threads work through the list, op after op.
//
// A context is used by one thread at a time: luce_run is not re-entrant. A process that forks must not use it in the
// child.

#include <new>
#include <system_error>

#include "chip.h"
#include "context.h"

using luce::Kernel;
using luce::Verdict;

// Weak: an op of the contract that no file implements is a null address here and LUCE_UNSUPPORTED when called.
#define LUCE_DECLARE(op) extern const Kernel kernel_##op __attribute__((weak));
namespace luce::baseline {
LUCE_OPS(LUCE_DECLARE)
}
namespace luce::avx2 {
LUCE_OPS(LUCE_DECLARE)
}
namespace luce::avx512 {
LUCE_OPS(LUCE_DECLARE)
}

namespace {

#define LUCE_ROW(op) {#op, {&luce::baseline::kernel_##op, &luce::avx2::kernel_##op, &luce::avx512::kernel_##op}},
const struct {
  const char *name;
  const Kernel *kernels[3];  // baseline, avx2, avx512
} kOps[] = {LUCE_OPS(LUCE_ROW)};

const char *const kIsaNames[] = {"auto", "baseline", "avx2", "avx512"};

thread_local std::string open_error;

const Kernel *kernel_of(const luce_context &context, int32_t op) {
  return kOps[op].kernels[context.isa - LUCE_ISA_BASELINE];
}

// Whether this call can run here; if not, why.
luce_status check(luce_context &context, int32_t op, const void *args) {
  if (op < 0 || op >= LUCE_N_OPS) return context.fail(LUCE_BAD_ARGUMENT, "there is no op " + std::to_string(op));
  const std::string name = kOps[op].name;
  const Kernel *kernel = kernel_of(context, op);
  if (kernel == nullptr) return context.fail(LUCE_UNSUPPORTED, "no kernel for " + name);
  if (args == nullptr) return context.fail(LUCE_BAD_ARGUMENT, name + ": no arguments");
  const Verdict verdict = kernel->check(args);
  return verdict.status == LUCE_OK ? LUCE_OK : context.fail(verdict.status, name + ": " + verdict.message);
}

// The same, and whether it has the workspace to run with.
luce_status check_run(luce_context &context, int32_t op, const void *args) {
  const luce_status status = check(context, op, args);
  if (status != LUCE_OK) return status;
  const Kernel *kernel = kernel_of(context, op);
  if (kernel->given(args) >= kernel->workspace(args, context.threads.count())) return LUCE_OK;
  return context.fail(LUCE_BAD_ARGUMENT, std::string(kOps[op].name) + ": workspace is too small");
}

struct Run {
  luce_context *context;
  const luce_call *calls;
};

void run_part(void *data, int step, int part, int worker) {
  const Run &run = *static_cast<Run *>(data);
  luce_context &context = *run.context;
  const luce_call &call = run.calls[step];
  kernel_of(context, call.op)
      ->run(call.args, {part, context.threads.count(), &context.scratch[worker], &context.fault, &context.threads});
}

}  // namespace

extern "C" {

uint32_t luce_abi_version(void) {
  return LUCE_ABI_VERSION;
}

luce_status luce_open(const luce_open_args *args, luce_context **out) {
  *out = nullptr;
  const luce_isa best = luce::best_isa();
  if (args->device != 0) {
    open_error = "a CPU is device 0, there is no device " + std::to_string(args->device);
    return LUCE_NO_DEVICE;
  }
  if (args->isa < LUCE_ISA_AUTO || args->isa > LUCE_ISA_AVX512 || args->n_threads < 0) {
    open_error = "isa or n_threads is out of range";
    return LUCE_BAD_ARGUMENT;
  }
  if (args->isa > best) {
    open_error = std::string("this processor has ") + kIsaNames[best] + ", not " + kIsaNames[args->isa];
    return LUCE_NO_DEVICE;
  }
  const luce_isa isa = args->isa == LUCE_ISA_AUTO ? best : static_cast<luce_isa>(args->isa);
  try {
    *out = new luce_context(isa, args->n_threads == 0 ? luce::usable_cores() : args->n_threads);
    return LUCE_OK;
  } catch (const std::bad_alloc &) {
    open_error = "no memory for a context";
  } catch (const std::system_error &error) {
    open_error = std::string("cannot start threads: ") + error.what();
  }
  return LUCE_NO_MEMORY;
}

void luce_close(luce_context *context) {
  delete context;
}

luce_status luce_get_info(luce_context *context, luce_info *out) {
  *out = {context->isa, context->threads.count(), {}};
  luce::chip_name().copy(out->name, sizeof out->name - 1);
  return LUCE_OK;
}

const char *luce_error(luce_context *context) {
  return context ? context->error.c_str() : open_error.c_str();
}

uint32_t luce_take_fault(luce_context *context) {
  return context->fault.exchange(LUCE_FAULT_NONE);
}

luce_status luce_workspace_bytes(luce_context *context, int32_t op, const void *args, int64_t *out_bytes) {
  *out_bytes = 0;
  const luce_status status = check(*context, op, args);
  if (status == LUCE_OK) *out_bytes = kernel_of(*context, op)->workspace(args, context->threads.count());
  return status;
}

luce_status luce_run(luce_context *context, const luce_call *calls, int32_t n_calls) {
  for (int32_t i = 0; i < n_calls; ++i) {
    const luce_status status = check_run(*context, calls[i].op, calls[i].args);
    if (status != LUCE_OK) return context->fail(status, "call " + std::to_string(i) + ": " + context->error);
  }
  Run run = {context, calls};
  context->threads.run(n_calls, run_part, &run);
  return LUCE_OK;
}

#define LUCE_DEFINE(op)                                                        \
  luce_status luce_##op(luce_context *context, const luce_##op##_args *args) { \
    const luce_call call = {LUCE_OP_##op, args};                               \
    return luce_run(context, &call, 1);                                        \
  }
LUCE_OPS(LUCE_DEFINE)

}  // extern "C"
