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
  is_stopped_ = true;
  raise(start_);
  for (std::thread &thread : threads_) thread.join();
}

void Threads::run(int n_steps, Job job, void *data) {
  n_parts_ = static_cast<uint32_t>(n_steps) * count_;
  job_ = job;
  data_ = data;
  next_ = 0;
  done_ = 0;
  is_open_ = true;
  if (count_ > 1) raise(start_);
  work(0);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) < n_parts_;) wait_while(done_, done);
  // A worker comes in before it looks whether the run is open: either it finds it closed, or it is waited for here.
  is_open_ = false;
  while (const uint32_t n = inside_) wait_while(inside_, n);
}

void Threads::loop(int worker) {
  for (uint32_t seen = 0; !is_stopped_;) {
    wait_while(start_, seen);
    seen = start_;
    ++inside_;
    if (is_open_) work(worker);
    --inside_;
    inside_.notify_all();
  }
}

void Threads::work(int worker) {
  for (uint32_t part; (part = next_.load(std::memory_order_relaxed)) < n_parts_;) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done < part / count_ * count_) {  // the step before is not done yet
      wait_while(done_, done);
    } else if (next_.compare_exchange_weak(part, part + 1, std::memory_order_relaxed)) {
      job_(data_, part / count_, part % count_, worker);
      if ((done_.fetch_add(1, std::memory_order_acq_rel) + 1) % count_ == 0) done_.notify_all();
    }
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
