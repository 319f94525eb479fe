// quantize.cpp: rows of F32 [K, n] to rows of Q8_A, which quantised weights meet.
//
// A Q8_A row is int8 q[K], float d[K/32], int16 sum[K/16]. A thread takes whole rows when there are enough of them,
// else (decode) a part of the blocks of each row: at n = 1 this op is as long as its row is read once.

#include <cmath>
#include <cstring>

#include "kernel.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int kBlock = 32;

// Blocks [begin, end) of one row of K values. An input that is not finite makes a block of whatever finite codes: never
// undefined behaviour.
void quantize_blocks(const float *x, char *out, int64_t K, Range blocks) {
  int8_t *q = reinterpret_cast<int8_t *>(out);
  float *d = reinterpret_cast<float *>(out + K);
  int16_t *sum = reinterpret_cast<int16_t *>(out + K + K / kBlock * sizeof(float));
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const float *v = x + b * kBlock;
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float a = std::fabs(v[i]);
      largest = a > largest ? a : largest;
    }
    d[b] = largest / 127;
    const float divisor = d[b] > 0 ? d[b] : 1;
    for (int half = 0; half < 2; ++half) {
      int16_t total = 0;
      for (int i = 16 * half; i < 16 * half + 16; ++i) {
        // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
        const float r = v[i] / divisor;
        const float bounded = r > 127 ? 127 : r > -127 ? r : -127;  // NaN: -127
        const float shifted = bounded + 12582912.0f;
        int32_t bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        const int8_t code = static_cast<int8_t>(bits - 0x4B400000);
        q[b * kBlock + i] = code;
        total += code;
      }
      sum[2 * b + half] = total;
    }
  }
}

Verdict check(const luce_quantize_args &a) {
  if (a.x.type != LUCE_F32 || a.out.type != LUCE_Q8_A) return unsupported("x is F32, out is Q8_A");
  if (a.x.nb[0] != 4) return unsupported("rows of x are contiguous");
  if (a.x.ne[0] % kBlock != 0) return unsupported("K is a multiple of 32");
  if (a.x.ne[0] != a.out.ne[0] || a.x.ne[1] != a.out.ne[1]) return bad("x and out have one shape");
  return {};
}

void run(const luce_quantize_args &a, const Worker &worker) {
  const int64_t K = a.x.ne[0], n_blocks = K / kBlock;
  const Range all = share(true_rows(a.n_rows, a.x.ne[1]) * n_blocks, worker);
  for (int64_t begin = all.begin; begin < all.end;) {
    const int64_t i = begin / n_blocks, first = begin % n_blocks;
    const int64_t end = all.end - i * n_blocks < n_blocks ? all.end - i * n_blocks : n_blocks;
    quantize_blocks(row<const float>(a.x, i), row<char>(a.out, i), K, {first, end});
    begin = i * n_blocks + end;
  }
}

}  // namespace

LUCE_KERNEL(quantize, check, run)

}  // namespace luce::LUCE_ISA
