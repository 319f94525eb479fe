// philox.cuh: the random numbers of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011), and the noise made of them.
#pragma once

#include "vendor.h"

namespace luce {

// Words of the ids 4 * group to 4 * group + 3 of one draw.
LUCE_DEVICE uint4 philox(uint64_t key, uint32_t group, int32_t position, int32_t choice) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint4 c = {group, static_cast<uint32_t>(position), static_cast<uint32_t>(choice), 0};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{c.x} * 0xD2511F53u, p1 = uint64_t{c.z} * 0xCD9E8D57u;
    c = {static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

LUCE_DEVICE uint32_t word_of(const uint4 &words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// -log(-log(u)), u = (word + 0.5) / 2^32.
LUCE_DEVICE double gumbel(uint32_t word) {
  return -log(-log((word + 0.5) * 0x1p-32));
}

// The same within 1e-5 or so: to leave out what cannot win.
LUCE_DEVICE float nearly_gumbel(uint32_t word) {
  const float rest = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;  // 1 - u
  return -logf(word < 0x80000000u ? -logf((static_cast<float>(word) + 0.5f) * 0x1p-32f) : -log1pf(-rest));
}

// How far the largest of the nearly exact scores may be below the largest of the exact ones.
LUCE_DEVICE float near_enough(float score) {
  return score - 1e-3f - 1e-5f * fabsf(score);
}

}  // namespace luce
