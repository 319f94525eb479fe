// context.h: what luce_open makes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"
#include "threads.h"

namespace luce {
struct MailboxThread;  // mailbox_thread.cpp
}

struct luce_context {
  luce_context(luce_isa isa, int n_threads) : isa(isa), scratch(n_threads), threads(n_threads) {}

  luce_status fail(luce_status status, std::string message) {
    error = std::move(message);
    return status;
  }

  struct alignas(64) Scratch {
    char bytes[luce::kScratchBytes];
  };

  const luce_isa isa;
  std::vector<Scratch> scratch;  // one for each thread
  luce::Threads threads;
  std::atomic<uint32_t> fault{LUCE_FAULT_NONE};
  std::string error;                                            // of the last status that was not LUCE_OK
  std::vector<std::shared_ptr<luce::MailboxThread>> mailboxes;  // the last member: their threads end first
};
