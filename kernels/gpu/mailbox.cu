// mailbox.cu: the op that asks the host for work inside a step, through two words of pinned memory.

#include "kernel.h"
#include "ops.h"

namespace luce {
namespace {

void launch(const luce_mailbox_args &a, Launcher &launcher) {
  launcher(kernel_mailbox, dim3(1), kLanes, 0, a);
}

LUCE_DEVICE uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

LUCE_GLOBAL(mailbox)(const __grid_constant__ luce_mailbox_args a, uint32_t *fault) {
  begin();
  if (threadIdx.x != 0) return;
  volatile int32_t *box = static_cast<volatile int32_t *>(a.box.data);
  __threadfence_system();  // what the step wrote is there before it asks
  const int32_t ticket = box[0] + 1;
  box[0] = ticket;
  const uint64_t end = nanoseconds() + static_cast<uint64_t>(a.timeout_s * 1e9);
  // Tickets may wrap: their difference does not.
  while (static_cast<int32_t>(static_cast<uint32_t>(box[1]) - static_cast<uint32_t>(ticket)) < 0) {
    if (nanoseconds() > end) return set_fault(fault, LUCE_FAULT_MAILBOX);
  }
  __threadfence_system();
}

}  // namespace luce

LUCE_OP(mailbox, check_mailbox, launch)
