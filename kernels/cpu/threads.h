// threads.h: the thread pool of a context.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace luce {

// `count` threads that do one job together, the calling thread as worker 0. run() and barrier() cost about a
// microsecond while the threads are hot; nobody spins longer than about 20 us, then sleeps.
class Threads {
 public:
  using Job = void (*)(void *data, int worker);

  explicit Threads(int count);  // throws std::system_error when the system has no thread left
  ~Threads();
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

  int count() const { return count_; }
  // job(data, i) on every worker i; returns when all are done. One caller at a time.
  void run(Job job, void *data);
  // Inside a job: returns when every worker has called it.
  void barrier();

 private:
  void loop(int worker);
  void stop();

  const int count_;
  Job job_ = nullptr;
  void *data_ = nullptr;
  alignas(64) std::atomic<uint32_t> start_{0};     // raised for each job
  alignas(64) std::atomic<int> arrived_{0};        // at the barrier
  alignas(64) std::atomic<uint32_t> released_{0};  // raised when all have arrived
  std::vector<std::thread> threads_;
};

}  // namespace luce
