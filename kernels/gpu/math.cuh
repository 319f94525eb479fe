// math.cuh: the activations, as they are on the CPU, and divisions of normal numbers, which cost a fourth of those that
// are right for all: a row waits for several, one after the other.
#pragma once

#include "vendor.h"

namespace luce {

// 1 / x and 1 / sqrt(x), a step of Newton's after the chip's own: all but the last bit is right.
LUCE_DEVICE float reciprocal_of(float x) {
  const float y = near_reciprocal(x);
  return fmaf(fmaf(-x, y, 1.0f), y, y);
}
LUCE_DEVICE float inverse_root_of(float x) {
  const float y = near_inverse_root(x);
  return fmaf(0.5f * fmaf(-x * y, y, 1.0f), y, y);
}

// x / y with the reciprocal of y: the remainder corrects it, so that it is rounded as a division is.
LUCE_DEVICE float quotient_of(float x, float y, float reciprocal) {
  const float near = x * reciprocal;
  return fmaf(fmaf(-near, y, x), reciprocal, near);
}

// z / (1 + e^-y): SiLU for y = z.
LUCE_DEVICE float times_sigmoid(float z, float y) {
  const float s = 1 + expf(-y);
  return s < 0x1p100f ? z * reciprocal_of(s) : z / s;
}

// 0.5 g (1 + tanh u) = g / (1 + e^-2u), which does not cancel for negative g.
LUCE_DEVICE float gelu_tanh(float g) {
  constexpr float kTwiceSqrt2OverPi = 1.59576912f;
  return times_sigmoid(g, kTwiceSqrt2OverPi * g * fmaf(0.044715f * g, g, 1.0f));
}

}  // namespace luce
