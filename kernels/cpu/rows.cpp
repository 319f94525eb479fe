// rows.cpp: out[:, i] = x[:, index[i]]: the rows of a step whose logits somebody wants.

#include <cstring>

#include "check.h"

namespace luce::LUCE_ISA {
namespace {

Verdict check(const luce_rows_args &a) {
  if (!is_f32(a.x) || !is_i32(a.index) || !is_f32(a.out)) return unsupported("x and out are F32, index is I32");
  if (a.x.ne[0] != a.out.ne[0]) return bad("x and out have rows of one length");
  return a.out.ne[1] == a.index.ne[0] ? Verdict{} : bad("out has a row for each index");
}

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

LUCE_KERNEL(rows, check, run)

}  // namespace luce::LUCE_ISA
