// mailbox_thread.cpp: the thread that answers a mailbox: at each ticket it runs its calls on a context of this library.

#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>

#include "context.h"

namespace luce {

// box[0] is raised by whoever asks (a GPU writes it: nothing can wake us, so we look), box[1] is our answer.
struct MailboxThread {
  MailboxThread(luce_context *context, int32_t *box, const luce_call *calls, int32_t n_calls)
      : box(box), thread([=, this] { serve(context, calls, n_calls); }) {}
  ~MailboxThread() {
    stopping = true;
    thread.join();
  }

  void serve(luce_context *context, const luce_call *calls, int32_t n_calls) {
    std::atomic_ref<int32_t> asked(box[0]), answered(box[1]);
    while (!stopping) {
      const int32_t ticket = asked.load(std::memory_order_acquire);
      if (ticket == answered.load(std::memory_order_relaxed)) {
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      } else if (luce_run(context, calls, n_calls) == LUCE_OK) {
        answered.store(ticket, std::memory_order_release);
      } else {
        return;  // the asker's time runs out and sets LUCE_FAULT_MAILBOX; luce_error(context) says why
      }
    }
  }

  int32_t *const box;
  std::atomic<bool> stopping{false};
  std::thread thread;
};

}  // namespace luce

extern "C" luce_status luce_mailbox_serve(luce_context *context, int32_t *box, const luce_call *calls,
                                          int32_t n_calls) {
  for (const auto &mailbox : context->mailboxes) {
    if (mailbox->box == box) return context->fail(LUCE_BAD_ARGUMENT, "this mailbox is served already");
  }
  try {
    context->mailboxes.push_back(std::make_shared<luce::MailboxThread>(context, box, calls, n_calls));
    return LUCE_OK;
  } catch (const std::system_error &error) {
    return context->fail(LUCE_NO_MEMORY, std::string("cannot start a thread: ") + error.what());
  }
}

extern "C" void luce_mailbox_stop(luce_context *context, int32_t *box) {
  std::erase_if(context->mailboxes, [box](const auto &mailbox) { return mailbox->box == box; });
}
