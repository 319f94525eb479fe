// mailbox.cpp: the op that asks the host for work inside a step. mailbox_thread.cpp is who answers.

#include <atomic>
#include <chrono>
#include <thread>

#include "kernel.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

// The other threads wait for the op to end. The answerer's work takes the core, so we do not spin.
void run(const luce_mailbox_args &a, const Worker &worker) {
  if (worker.index != 0) return;
  int32_t *box = static_cast<int32_t *>(a.box.data);
  const std::atomic_ref<int32_t> asked(box[0]), answered(box[1]);
  const int32_t ticket = asked.fetch_add(1, std::memory_order_acq_rel) + 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<float>(a.timeout_s);
  // Tickets may wrap: their difference does not.
  while (static_cast<int32_t>(static_cast<uint32_t>(answered.load(std::memory_order_acquire)) - ticket) < 0) {
    if (std::chrono::steady_clock::now() > end) return worker.fault(LUCE_FAULT_MAILBOX);
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

}  // namespace

LUCE_KERNEL(mailbox, check_mailbox, run)

}  // namespace luce::LUCE_ISA
