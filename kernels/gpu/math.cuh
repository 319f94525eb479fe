// math.cuh: the activations, as they are on the CPU.
#pragma once

#include "vendor.h"

namespace luce {

// z / (1 + e^-y): SiLU for y = z.
LUCE_DEVICE float times_sigmoid(float z, float y) {
  return z / (1 + expf(-y));
}

// 0.5 g (1 + tanh u) = g / (1 + e^-2u), which does not cancel for negative g.
LUCE_DEVICE float gelu_tanh(float g) {
  constexpr float kTwiceSqrt2OverPi = 1.59576912f;
  return times_sigmoid(g, kTwiceSqrt2OverPi * g * fmaf(0.044715f * g, g, 1.0f));
}

}  // namespace luce
