// quantize.cpp: rows of F32 [K, n] to rows of Q8_A, which quantised weights meet.
//
// A Q8_A row is int8 q[K], float d[K/32], int16 sum[K/16]. A thread takes whole rows when there are enough of them,
// else (decode) a part of the blocks of each row: at n = 1 this op is as long as its row is read once.

#include "kernel.h"
#include "ops.h"
#include "simd.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int kBlock = 32;

// Sums of the codes of 16 values, of which each vector holds kLanes.
LUCE_INLINE int16_t sum_of(const I32 *codes) {
  I32 total = codes[0];
  for (int i = 1; i < 16 / kLanes; ++i) total += codes[i];
  return static_cast<int16_t>(sum(total));
}

// Blocks [begin, end) of one row of K values. An input that is not finite gives finite codes of no meaning: a NaN is
// -127.
void quantize_blocks(const float *x, char *out, int64_t K, Range blocks) {
  constexpr int kVectors = kBlock / kLanes;
  char *d_row = out + K, *sum_row = d_row + K / kBlock * sizeof(float);
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    F32 v[kVectors], most = {};
    for (int i = 0; i < kVectors; ++i) {
      v[i] = load<F32>(x + b * kBlock + i * kLanes);
      most = max(abs(v[i]), most);
    }
    const float d = largest(most) / 127;
    const F32 divisor = splat(d > 0 ? d : 1);
    I32 codes[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits.
      const F32 bounded = min(max(v[i] / divisor, splat(-127.0f)), splat(127.0f));
      codes[i] = reinterpret_cast<I32>(bounded + 0x1.8p23f) - 0x4B400000;
      store(out + b * kBlock + i * kLanes, narrow_to_bytes(codes[i]));
    }
    store(d_row + 4 * b, d);
    store(sum_row + 4 * b, sum_of(codes));
    store(sum_row + 4 * b + 2, sum_of(codes + kVectors / 2));
  }
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

LUCE_KERNEL(quantize, check_quantize, run)

}  // namespace luce::LUCE_ISA
