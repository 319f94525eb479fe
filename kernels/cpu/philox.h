// philox.h: the random numbers of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011), and the noise made of them.
#pragma once

#include <cmath>

#include "simd.h"

namespace luce::LUCE_ISA {

typedef uint64_t U64 __attribute__((vector_size(4 * kLanes)));
constexpr int kCounters = kLanes / 2;  // that a vector holds

// Turns a counter into four random words of 32 bits. Word is uint64_t, or U64 for kCounters counters at once.
template <class Word>
LUCE_INLINE void philox(uint64_t key, Word (&c)[4]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Word p0 = c[0] * uint64_t{0xD2511F53}, p1 = c[2] * uint64_t{0xCD9E8D57};
    c[0] = (p1 >> 32) ^ c[1] ^ uint64_t { k0 };
    c[1] = p1 & 0xFFFFFFFF;
    c[2] = (p0 >> 32) ^ c[3] ^ uint64_t { k1 };
    c[3] = p0 & 0xFFFFFFFF;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Gumbel noise of a random word; libm's logarithm, so that every instruction set has the same bits.
inline double gumbel(uint64_t word) {
  return -std::log(-std::log((word + 0.5) * 0x1p-32));
}

constexpr double kLargestNoise = 22.88;  // of the word 2^32 - 1

}  // namespace luce::LUCE_ISA
