// cells.cuh: the cells of a paged cache: where they are and what their bytes mean.
#pragma once

#include "kernel.h"

namespace luce {

LUCE_DEVICE int cell_bytes(const luce_tensor &pages) {
  const int D = static_cast<int>(pages.ne[0]);
  return static_cast<int>(pages.nb[0]) * (pages.type == LUCE_Q8_0 || pages.type == LUCE_Q4_0 ? D / 32 : D);
}

LUCE_DEVICE uint8_t *cell(const luce_tensor &pages, int64_t c, int64_t head, int64_t page) {
  return static_cast<uint8_t *>(pages.data) + c * pages.nb[1] + head * pages.nb[2] + page * pages.nb[3];
}

// Value k of a cell.
LUCE_DEVICE float cell_value(int type, const uint8_t *cell, int k) {
  switch (type) {
    case LUCE_F32:
      return reinterpret_cast<const float *>(cell)[k];
    case LUCE_F16:
      return __half2float(reinterpret_cast<const __half *>(cell)[k]);
    case LUCE_BF16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(cell)[k]);
    case LUCE_Q8_0: {
      const uint8_t *block = cell + k / 32 * kQ8Bytes;
      return __half2float(*reinterpret_cast<const __half *>(block)) * static_cast<int8_t>(block[2 + k % 32]);
    }
    default: {
      const uint8_t *block = cell + k / 32 * kQ4Bytes;
      const int code = block[2 + k % 16] >> (k % 32 / 16 * 4) & 15;
      return __half2float(*reinterpret_cast<const __half *>(block)) * static_cast<float>(code - 8);
    }
  }
}

// A warp stores 32 values, one from each lane, beginning at value k, a multiple of 32; lanes with is_there false have
// none (a quantised cell has none of those).
LUCE_DEVICE void store_cell(int type, uint8_t *cell, int k, float x, bool is_there) {
  const int lane = threadIdx.x % kLanes;
  if (type == LUCE_Q8_0) {
    // d = max|x| / 127, q = round-to-even(x / d); d itself is stored as F16.
    uint8_t *block = cell + k / 32 * kQ8Bytes;
    const float d = largest_of_warp(fabsf(x)) / 127;
    block[2 + lane] = static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(x / (d > 0 ? d : 1.0f), -127.0f), 127.0f)));
    if (lane == 0) *reinterpret_cast<__half *>(block) = __float2half_rn(d);
  } else if (type == LUCE_Q4_0) {
    // The first value of the largest magnitude becomes -8; codes are x / d + 8.5 without the fraction, at most 15.
    uint8_t *block = cell + k / 32 * kQ4Bytes;
    const unsigned largest = __ballot_sync(kAllLanes, fabsf(x) == largest_of_warp(fabsf(x)));
    const float d = __shfl_sync(kAllLanes, x, largest ? __ffs(largest) - 1 : 0) / -8;
    const int code = min(static_cast<int>(x * (d != 0 ? 1 / d : 0.0f) + 8.5f), 15);
    const int high = __shfl_down_sync(kAllLanes, code, 16);
    if (lane < 16) block[2 + lane] = static_cast<uint8_t>(code | high << 4);
    if (lane == 0) *reinterpret_cast<__half *>(block) = __float2half_rn(d);
  } else if (!is_there) {
    return;
  } else if (type == LUCE_F32) {
    reinterpret_cast<float *>(cell)[k + lane] = x;
  } else if (type == LUCE_F16) {
    reinterpret_cast<__half *>(cell)[k + lane] = __float2half_rn(x);
  } else {
    reinterpret_cast<__nv_bfloat16 *>(cell)[k + lane] = __float2bfloat16_rn(x);
  }
}

}  // namespace luce
