// threads.cpp: workers that wait on a word: spinning at first, asleep after about 20 us.

#include "threads.h"

#include <chrono>

namespace luce {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_while(const std::atomic<uint32_t> &word, uint32_t old) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  word.wait(old, std::memory_order_acquire);
}

void raise(std::atomic<uint32_t> &word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  word.notify_all();
}

}  // namespace

Threads::Threads(int count) : count_(count) {
  try {
    for (int worker = 1; worker < count; ++worker) threads_.emplace_back(&Threads::loop, this, worker);
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() {
  stop();
}

void Threads::stop() {
  job_ = nullptr;
  raise(start_);
  for (std::thread &thread : threads_) thread.join();
}

void Threads::run(Job job, void *data) {
  job_ = job;
  data_ = data;
  if (count_ > 1) raise(start_);
  job(data, 0);
  barrier();
}

void Threads::loop(int worker) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(start_, seen);
    if (job_ == nullptr) return;
    job_(data_, worker);
    barrier();
  }
}

void Threads::barrier() {
  if (count_ == 1) return;
  const uint32_t phase = released_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < count_) {
    wait_while(released_, phase);
  } else {
    arrived_.store(0, std::memory_order_relaxed);
    raise(released_);
  }
}

}  // namespace luce
