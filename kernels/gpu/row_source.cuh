// row_source.cuh: how a block makes a row of values that many will use: a norm, or a gate times what it lets through.
// row_chain.cu writes it to memory, luce_matmul for one row keeps it in shared memory.
//
// A block has kRowBlock threads; each takes four values side by side of every 1024. The order of a sum depends on the
// length of the row alone.
#pragma once

#include "kernel.h"
#include "math.cuh"

namespace luce {

constexpr int kRowBlock = 256;
constexpr int kRowStep = 4 * kRowBlock;
constexpr int kHeld = 4;  // fours that a thread keeps in registers: rows of up to 4096 values are read once

struct RowSource {
  const float *x;       // null: there is nothing to make
  const float *up;      // null, or the row is activation(x) * up
  const float *weight;  // null, or the norm's
  float eps;            // of a norm; negative: there is none
  int32_t activation;
  float *made;         // where the row is wanted too, as F32; null: nowhere
  uint8_t *quantized;  // and as Q8_A

  LUCE_DEVICE bool is_norm() const { return eps >= 0; }
};

// Values k to k + 3 of a row of D; those beyond its end are 0.
LUCE_DEVICE float4 load_four(const float *x, int k, int D) {
  if (k + 4 <= D && reinterpret_cast<uintptr_t>(x + k) % 16 == 0) return *reinterpret_cast<const float4 *>(x + k);
  return {k < D ? x[k] : 0, k + 1 < D ? x[k + 1] : 0, k + 2 < D ? x[k + 2] : 0, k + 3 < D ? x[k + 3] : 0};
}
// The same where k and D are multiples of 4, at addresses that are multiples of 16 bytes.
LUCE_DEVICE float4 four_of(const float *x, int k, int D) {
  return k < D ? *reinterpret_cast<const float4 *>(x + k) : float4{0, 0, 0, 0};
}
LUCE_DEVICE void store_four(float *x, int k, int D, float4 v) {
  if (k + 4 <= D && reinterpret_cast<uintptr_t>(x + k) % 16 == 0) {
    *reinterpret_cast<float4 *>(x + k) = v;
    return;
  }
  if (k < D) x[k] = v.x;
  if (k + 1 < D) x[k + 1] = v.y;
  if (k + 2 < D) x[k + 2] = v.z;
  if (k + 3 < D) x[k + 3] = v.w;
}

LUCE_DEVICE float add_squares(float sum, float4 v) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}
LUCE_DEVICE float4 normed(float4 v, float scale) {
  return {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}
LUCE_DEVICE float4 times(float4 v, float4 w) {
  return {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
}
LUCE_DEVICE float scale_of_norm(float sum_of_squares, int D, float eps) {
  return 1 / sqrtf(sum_of_squares / static_cast<float>(D) + eps);
}
LUCE_DEVICE float4 gated(float4 gate, float4 up, int32_t activation) {
  const auto act = [=](float g) { return activation == LUCE_SILU ? times_sigmoid(g, g) : gelu_tanh(g); };
  return times({act(gate.x), act(gate.y), act(gate.z), act(gate.w)}, up);
}

// A row of D values in the making, D a multiple of 4, at addresses that are multiples of 16 bytes. The norm's weights
// can be read before what was launched earlier has ended. What is unrolled here is small: a kernel that runs for
// microseconds waits for its own instructions.
struct RowMaker {
  const RowSource &s;
  int D, first = 4 * threadIdx.x;
  float4 weights[kHeld];

  LUCE_DEVICE RowMaker(const RowSource &s, int D) : s(s), D(D) { read(s.weight, weights); }

  // put(k, values k to k + 3); whole warps call it, so k may be beyond the end. `room`: shared, one for each warp.
  template <class Put>
  LUCE_DEVICE void run(float *room, Put put) const {
    float4 held[kHeld];
    read(s.x, held);
    float scale = 1;
    if (s.is_norm()) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum = add_squares(sum, held[i]);
#pragma unroll 1
      for (int k = first + kHeld * kRowStep; k < D; k += kRowStep) sum = add_squares(sum, four_of(s.x, k, D));
      scale = scale_of_norm(sum_of_block(sum, room), D, s.eps);
    }
    const int lane_four = 4 * (threadIdx.x % kLanes);
    if (s.up == nullptr) {
#pragma unroll 1
      for (int i = 0; i < kHeld; ++i) {
        const int k = first + i * kRowStep;
        if (k - lane_four >= D) return;
        float4 v = held[0], w = weights[0];
#pragma unroll
        for (int j = 1; j < kHeld; ++j) {
          if (i == j) v = held[j], w = weights[j];
        }
        put(k, s.weight ? times(normed(v, scale), w) : normed(v, scale));
      }
    }
#pragma unroll 1
    for (int k = first + (s.up ? 0 : kHeld * kRowStep); k - lane_four < D; k += kRowStep) {
      float4 v = normed(four_of(s.x, k, D), scale);
      if (s.weight) v = times(v, four_of(s.weight, k, D));
      if (s.up) v = gated(v, four_of(s.up, k, D), s.activation);
      put(k, v);
    }
  }

 private:
  LUCE_DEVICE void read(const float *x, float4 (&fours)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int k = first + i * kRowStep;
      fours[i] = x ? four_of(x, k, D) : float4{0, 0, 0, 0};
    }
  }
};

}  // namespace luce
