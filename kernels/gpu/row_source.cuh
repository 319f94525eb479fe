// row_source.cuh: how a block makes a row of values that many will use: a norm, or a gate times what it lets through.
// row_chain.cu writes it to memory, luce_matmul for one row keeps it in shared memory.
//
// A thread takes four values side by side. A norm's squares are added warp by warp, in pieces of 128 values, as a tree;
// then every 32nd piece, then those 32 sums as a tree. So a block can have any number of warps.
#pragma once

#include "kernel.h"
#include "math.cuh"

namespace luce {

constexpr int kRowBlock = 256;
constexpr int kRowStep = 4 * kRowBlock;
constexpr int kPiece = 4 * kLanes, kMostPieces = 32;
constexpr int kMostMade = kMostPieces * kPiece;  // values of a row that a block makes for itself

struct AddedNorm {
  const float *weight, *residual;  // residual null: there is none of this
  float eps;
  float *normed, *sum;  // where both are wanted
};

struct RowSource {
  const float *x;       // null: there is nothing to make
  const float *up;      // null, or the row is activation(x) * up
  const float *weight;  // null, or the norm's
  float eps;            // of a norm; negative: there is none
  int32_t activation;
  float *made;         // where the row is wanted too, as F32; null: nowhere
  uint8_t *quantized;  // and as Q8_A
  AddedNorm before;    // x is normed and added to another row, and it is that sum which is normed

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
  return inverse_root_of(fmaf(sum_of_squares, 1 / static_cast<float>(D), eps));
}
LUCE_DEVICE float activated(float x, int32_t activation) {
  return activation == LUCE_SILU ? times_sigmoid(x, x) : gelu_tanh(x);
}
LUCE_DEVICE float4 gated(float4 gate, float4 up, int32_t activation) {
  const auto act = [=](float x) { return activated(x, activation); };
  return times({act(gate.x), act(gate.y), act(gate.z), act(gate.w)}, up);
}

// A row of up to kMostMade values in the making, which lie at addresses that are multiples of 16 bytes. A thread holds
// its first four; where it has more of them, they are read again: not of a sum, which takes a thread for each four. The
// norm's weights can be read before what was launched earlier has ended.
struct RowMaker {
  const RowSource &s;
  int D, first = 4 * threadIdx.x;
  float4 weight, weight_before, x, residual;

  // Where nothing earlier still runs, the row is asked for too: before the weights, behind which it would wait.
  LUCE_DEVICE RowMaker(const RowSource &s, int D) : s(s), D(D) {
    if (!kStartsEarly) read();
    weight = s.weight ? four_of(s.weight, first, D) : float4{1, 1, 1, 1};
    weight_before = s.before.residual ? four_of(s.before.weight, first, D) : float4{1, 1, 1, 1};
  }

  // put(k, values k to k + 3); whole warps call it, so k may be beyond the end. `room`: shared, twice kMostPieces of
  // it. The block that `writes` also puts the sum, and what was added, where they are wanted.
  template <class Put>
  LUCE_DEVICE void run(float *room, bool writes, Put put) {
    if (kStartsEarly) read();
    const int lane_four = 4 * (threadIdx.x % kLanes), step = 4 * blockDim.x;
    float4 held = x;
    if (s.before.residual) {
      held = times(normed(held, scale(held, s.before.eps, room + kMostPieces)), weight_before);
      if (writes && first < D) *reinterpret_cast<float4 *>(s.before.normed + first) = held;
      held = {residual.x + held.x, residual.y + held.y, residual.z + held.z, residual.w + held.w};
      if (writes && first < D) *reinterpret_cast<float4 *>(s.before.sum + first) = held;
    }
    const float scale = s.is_norm() ? this->scale(held, s.eps, room) : 1.0f;
#pragma unroll 1
    for (int k = first; k - lane_four < D; k += step) {
      float4 v = normed(k == first ? held : four_of(s.x, k, D), scale);
      if (s.weight) v = times(v, k == first ? weight : four_of(s.weight, k, D));
      if (s.up) v = gated(v, four_of(s.up, k, D), s.activation);
      put(k, v);
    }
  }

 private:
  LUCE_DEVICE void read() {
    if (s.x) x = four_of(s.x, first, D);
    if (s.before.residual) residual = four_of(s.before.residual, first, D);
  }

  // Of the norm of the row whose first fours the threads hold.
  LUCE_DEVICE float scale(const float4 &held, float eps, float *room) const {
    const int lane = threadIdx.x % kLanes;
#pragma unroll 1
    for (int k = first; k - 4 * lane < D; k += 4 * blockDim.x) {
      const float sum = sum_of_warp(add_squares(0, k == first ? held : four_of(s.x, k, D)));
      if (lane == 0) room[k / kPiece] = sum;
    }
    __syncthreads();
    return scale_of_norm(sum_of_warp(lane * kPiece < D ? room[lane] : 0.0f), D, eps);
  }
};

}  // namespace luce
