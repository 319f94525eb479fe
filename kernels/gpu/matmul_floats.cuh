// matmul_floats.cuh: F32, F16 and BF16 weights as they lie in a row, piece by piece.
#pragma once

#include "matmul.cuh"

namespace luce {
namespace {

template <int type>
struct Weight;
template <>
struct Weight<LUCE_F32> {
  using Value = float;
  LUCE_DEVICE static float to_float(float x) { return x; }
};
template <>
struct Weight<LUCE_F16> {
  using Value = __half;
  LUCE_DEVICE static float to_float(__half x) { return __half2float(x); }
};
template <>
struct Weight<LUCE_BF16> {
  using Value = __nv_bfloat16;
  LUCE_DEVICE static float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
};

// kValues of a row, and as floats.
template <int type, int kValues>
struct Piece {
  using Value = typename Weight<type>::Value;
  alignas(kValues * sizeof(Value)) Value values[kValues];

  LUCE_DEVICE void load(const Value *p) {
    if constexpr (kValues == 1) {
      values[0] = *p;
    } else {
      *reinterpret_cast<uint4 *>(values) = load_weights(reinterpret_cast<const uint4 *>(p));
    }
  }
  LUCE_DEVICE void read(const uint4 *shared) { *reinterpret_cast<uint4 *>(values) = *shared; }
  LUCE_DEVICE float operator[](int i) const { return Weight<type>::to_float(values[i]); }
};

template <int kValues>
LUCE_DEVICE void load_x(const float *p, float (&x)[kValues]) {
  if constexpr (kValues == 1) {
    x[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 v = *reinterpret_cast<const float4 *>(p + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  }
}

}  // namespace
}  // namespace luce
