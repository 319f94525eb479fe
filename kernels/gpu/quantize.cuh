// quantize.cuh: activations to int8, for what has them in registers.
#pragma once

#include "kernel.h"

namespace luce {

// Writes four values of a row of Q8_A, from value k on: eight lanes side by side have the 32 of a block. What is not
// finite gives finite codes of no meaning. A lane that is not there takes part and writes nothing.
LUCE_DEVICE void quantize_four(float4 x, uint8_t *out, int64_t K, int k, bool is_there) {
  float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) most = fmaxf(most, shuffle_xor(most, lanes));
  // v / d, rounded as a division is, from one reciprocal: the remainder corrects it. Both are scaled where that is no
  // normal number.
  const float d = most / 127, up = d < 1e-30f ? 0x1p96f : 1.0f, divisor = d > 0 ? d * up : 1.0f;
  const float reciprocal = reciprocal_of(divisor);
  const auto code = [=](float v) {
    const float near = v * up * reciprocal, quotient = fmaf(fmaf(-near, divisor, v * up), reciprocal, near);
    return __float2int_rn(fminf(fmaxf(quotient, -127.0f), 127.0f));
  };
  const int q[4] = {code(x.x), code(x.y), code(x.z), code(x.w)};
  int sum = q[0] + q[1] + q[2] + q[3];
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  if (!is_there) return;
  *reinterpret_cast<char4 *>(out + k) = make_char4(static_cast<signed char>(q[0]), static_cast<signed char>(q[1]),
                                                   static_cast<signed char>(q[2]), static_cast<signed char>(q[3]));
  if (k % 32 == 0) reinterpret_cast<float *>(out + K)[k / 32] = d;
  if (k % 16 == 0) reinterpret_cast<int16_t *>(out + K + K / 8)[k / 16] = static_cast<int16_t>(sum);
}

}  // namespace luce
