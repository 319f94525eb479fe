// math.h: exp and tanh of vectors. Polynomials fitted for the least relative error; tests/ops hold them to their
// bounds.
#pragma once

#include "simd.h"

namespace luce::LUCE_ISA {

// e^x within 2 ulp on [-86.6, 88.72]; below it 0, above it infinity. NaN stays NaN.
LUCE_INLINE F32 exp(F32 x) {
  constexpr float kSmallest = -86.6f, kLargest = 88.72283f;
  constexpr float kLog2e = 1.44269504f, kRound = 0x1.8p23f;
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 1.42860682e-6f;  // n * kLn2High is exact

  const F32 bounded = min(splat(kLargest), max(splat(kSmallest), x));
  const F32 shifted = fma(bounded, splat(kLog2e), splat(kRound));
  const F32 n = shifted - kRound;
  const F32 r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), bounded));
  // e^r = 1 + r + r^2 p(r) for |r| <= ln 2 / 2
  F32 p = fma(splat(0.00138131448f), r, splat(0.00836941879f));
  p = fma(p, r, splat(0.0416684560f));
  p = fma(p, r, splat(0.166665152f));
  p = fma(p, r, splat(0.49999994f));
  const F32 y = fma(r * r, p, r) + 1;
  const F32 scaled = reinterpret_cast<F32>(reinterpret_cast<I32>(y) + (reinterpret_cast<I32>(shifted) << 23));
  return x < kSmallest ? F32{} : x > kLargest ? splat(__builtin_inff()) : scaled;
}

// Within 3 ulp everywhere: an odd polynomial near 0, where the quotient would cancel.
LUCE_INLINE F32 tanh(F32 x) {
  const F32 a = abs(x), z = x * x;
  F32 p = fma(splat(-0.00551516376f), z, splat(0.0204694197f));
  p = fma(p, z, splat(-0.0536880232f));
  p = fma(p, z, splat(0.133308306f));
  p = fma(p, z, splat(-0.333332598f));
  const F32 near = fma(x * z, p, x);
  const F32 t = exp(-2 * a);
  const F32 far = (1 - t) / (1 + t);
  return a < 0.625f ? near : x < 0 ? -far : far;
}

// log(1 + e^x) within 8 ulp: for t = e^-|x| log(1 + t) is 2 artanh(s), s = t / (2 + t) <= 1/3.
LUCE_INLINE F32 softplus(F32 x) {
  const F32 t = exp(-abs(x)), s = t / (2 + t), z = s * s;
  F32 p = splat(1.0f / 15);
  for (int odd = 13; odd > 0; odd -= 2) p = fma(p, z, splat(1.0f / odd));
  return max(x, F32{}) + 2 * s * p;
}

// z / (1 + e^-y): SiLU for y = z.
LUCE_INLINE F32 times_sigmoid(F32 z, F32 y) {
  return z / (1 + exp(-y));
}

}  // namespace luce::LUCE_ISA
