// context.h: what luce_open makes.
#pragma once

#include <string>
#include <utility>

#include "kernel.h"

struct luce_context {
  luce_status fail(luce_status status, std::string message) {
    error = std::move(message);
    return status;
  }

  int device;
  int generation;  // of the chip, or the older one that was asked for
  int n_multiprocessors;
  int64_t most_shared;  // of luce::Launcher
  char name[64];
  luce::Stream stream;
  uint32_t *fault;      // pinned: read by the host at commit
  uint32_t *arrivals;   // of luce::Launcher
  float *scratch;       // likewise
  std::string error{};  // of the last status that was not LUCE_OK
};
