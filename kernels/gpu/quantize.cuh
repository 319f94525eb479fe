// quantize.cuh: activations to int8, for what has them in registers.
#pragma once

#include "kernel.h"
#include "math.cuh"

namespace luce {

// Of 32 values of a row of Q8_A, whose greatest magnitude is known: their scale, and the code of one of them. What is
// not finite gives finite codes of no meaning.
struct Codes32 {
  float d, up, divisor, reciprocal;

  // Value and scale are made larger where their quotient could not be had otherwise.
  LUCE_DEVICE explicit Codes32(float most)
      : d(quotient_of(most, 127.0f, 1 / 127.0f)),
        up(d < 1e-30f ? 0x1p96f : 1.0f),
        divisor(d > 0 ? d * up : 1.0f),
        reciprocal(reciprocal_of(divisor)) {}

  LUCE_DEVICE int of(float v) const {
    return __float2int_rn(fminf(fmaxf(quotient_of(v * up, divisor, reciprocal), -127.0f), 127.0f));
  }
};

// Where a row of Q8_A of K values has the scale of value k, and the sum of 16 codes.
LUCE_DEVICE float *scale_at(uint8_t *row, int64_t K, int k) {
  return reinterpret_cast<float *>(row + K) + k / 32;
}
LUCE_DEVICE int16_t *sum_at(uint8_t *row, int64_t K, int k) {
  return reinterpret_cast<int16_t *>(row + K + K / 8) + k / 16;
}

// Four values of a row as Q8_A has them; eight lanes side by side have the 32 of a block, and all of a warp take part.
struct FourCodes {
  char4 codes;
  float d;
  int sum;  // of the 16 codes of this lane and its three neighbours

  LUCE_DEVICE explicit FourCodes(float4 x) {
    float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) most = fmaxf(most, shuffle_xor(most, lanes));
    const Codes32 code(most);
    const int q[4] = {code.of(x.x), code.of(x.y), code.of(x.z), code.of(x.w)};
    codes = make_char4(static_cast<signed char>(q[0]), static_cast<signed char>(q[1]), static_cast<signed char>(q[2]),
                       static_cast<signed char>(q[3]));
    d = code.d;
    sum = q[0] + q[1] + q[2] + q[3];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
  }

  // To values k to k + 3 of a row.
  LUCE_DEVICE void put(uint8_t *row, int64_t K, int k) const {
    *reinterpret_cast<char4 *>(row + k) = codes;
    if (k % 32 == 0) *scale_at(row, K, k) = d;
    if (k % 16 == 0) *sum_at(row, K, k) = static_cast<int16_t>(sum);
  }
};

// A warp: 32 values of a row from value first on, one in each lane.
LUCE_DEVICE void quantize_block(float x, uint8_t *row, int64_t K, int first) {
  const int k = first + threadIdx.x % kLanes;
  const Codes32 code(largest_of_warp(fabsf(x)));
  const int q = code.of(x);
  int sum = q;
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
  row[k] = static_cast<uint8_t>(q);
  if (k % 32 == 0) *scale_at(row, K, k) = code.d;
  if (k % 16 == 0) *sum_at(row, K, k) = static_cast<int16_t>(sum);
}

}  // namespace luce
