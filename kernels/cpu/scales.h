// scales.h: the scales of blocks (format.h) as floats.
#pragma once

#include "format.h"
#include "simd.h"

namespace luce::LUCE_ISA {

// 2^(e - 128) for e of 0 to 255: below 2 the float has no leading one.
LUCE_INLINE F32 half_e8m0(I32 e) {
  return reinterpret_cast<F32>(e < 2 ? (e + 1) << 21 : (e - 1) << 23);
}

// Shifted by seven the bits are an F16's, whose exponent counts from -15 and not from -7.
LUCE_INLINE F32 half_ue4m3(I32 bits) {
  return f16_to_f32(narrow_to_half(bits << 7)) * 128.0f;
}

// The scale of a span of a block in the common form.
template <Format f>
float span_scale(const Block &block, int span) {
  if constexpr (f.scales == Scales::kPowers) {
    return half_e8m0(I32{block.d})[0];
  } else if constexpr (f.scales == Scales::kFloats) {
    return half_ue4m3(I32{block.scale[span]})[0];
  } else if constexpr (f.scales == Scales::kSpans) {
    return f16_to_f32(block.d) * f.unit * block.scale[span];
  } else {
    return f16_to_f32(block.d);
  }
}

template <Format f>
float span_min(const Block &block, int span) {
  if constexpr (!f.mins) return 0;
  return f16_to_f32(block.m) * (f.scales == Scales::kSpans ? block.min[span] : 1);
}

}  // namespace luce::LUCE_ISA
