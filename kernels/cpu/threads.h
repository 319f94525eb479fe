// threads.h: the thread pool of a context.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace luce {

// `count` threads that work together, the calling thread as worker 0. A step costs about a microsecond while they are
// hot; nobody spins longer than about 20 us, then sleeps. Whoever runs takes the next part: where other processes take
// cores, a thread that waits for one holds nobody up unless it is in the middle of a part.
class Threads {
 public:
  using Job = void (*)(void *data, int step, int part, int worker);

  explicit Threads(int count);  // throws std::system_error when the system has no thread left
  ~Threads();
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

  int count() const { return count_; }
  // job(data, step, part, worker) for `count` parts of each step, one step after the other; returns when all are done.
  // One caller at a time.
  void run(int n_steps, Job job, void *data);
  // Inside a job: returns when every part of the step, each on a worker of its own, has called it.
  void barrier();

 private:
  void loop(int worker);
  void work(int worker);
  void stop();

  const int count_;
  uint32_t n_parts_ = 0;  // of all steps
  Job job_ = nullptr;
  void *data_ = nullptr;
  std::atomic<bool> is_open_{false}, is_stopped_{false};
  alignas(64) std::atomic<uint32_t> start_{0};     // raised for each run
  alignas(64) std::atomic<uint32_t> inside_{0};    // workers that may look at the run
  alignas(64) std::atomic<uint32_t> next_{0};      // the part to take: step * count + part
  alignas(64) std::atomic<uint32_t> done_{0};      // parts
  alignas(64) std::atomic<int> arrived_{0};        // at the barrier
  alignas(64) std::atomic<uint32_t> released_{0};  // raised when all have arrived
  std::vector<std::thread> threads_;
};

}  // namespace luce
