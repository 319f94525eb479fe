// quantize.cuh: a block of activations to int8, by a warp: for what has them in registers.
#pragma once

#include "kernel.h"

namespace luce {

// Writes block b of a row of Q8_A; lane l has value l. What is not finite gives finite codes of no meaning.
LUCE_DEVICE void quantize_block(float x, uint8_t *out, int64_t K, int b) {
  const int lane = threadIdx.x % kLanes;
  const float d = largest_of_warp(fabsf(x)) / 127;
  const int q = __float2int_rn(fminf(fmaxf(x / (d > 0 ? d : 1.0f), -127.0f), 127.0f));
  int sum = q;
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
  out[b * 32 + lane] = static_cast<uint8_t>(q);
  if (lane == 0) reinterpret_cast<float *>(out + K)[b] = d;
  if (lane % 16 == 0) reinterpret_cast<int16_t *>(out + K + K / 8)[b * 2 + lane / 16] = static_cast<int16_t>(sum);
}

}  // namespace luce
