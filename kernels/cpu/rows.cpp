// rows.cpp: out[:, i] = x[:, index[i]]: the rows of a step whose logits somebody wants.

#include <cstring>

#include "kernel.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

void run(const luce_rows_args &a, const Worker &worker) {
  const int32_t *index = static_cast<const int32_t *>(a.index.data);
  const int64_t row_bytes = a.x.ne[0] * sizeof(float);
  const Range mine = share(true_rows(a.n_rows, a.index.ne[0]), worker);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    if (index[i] >= 0 && index[i] < a.x.ne[1]) {
      std::memcpy(row<float>(a.out, i), row<const float>(a.x, index[i]), row_bytes);
    } else {
      worker.fault(LUCE_FAULT_ROW);
      std::memset(row<float>(a.out, i), 0, row_bytes);
    }
  }
}

}  // namespace

LUCE_KERNEL(rows, check_rows, run)

}  // namespace luce::LUCE_ISA
