// matmul.cuh: what a launch of luce_matmul takes: matrices of one type that meet the same rows of x, side by side.
#pragma once

#include "pack.cuh"

namespace luce {

constexpr int kMostParts = 3;  // q, k, v; gate, up

struct MatmulPart {
  const uint8_t *weight;
  const float *bias, *add;  // null: none
  float *out;
  int64_t add_stride, out_stride;  // bytes from row to row
  int32_t N, end_tile;             // tiles of this part and of those before it
};

struct MatmulArgs {
  const uint8_t *x;
  int64_t x_stride;
  const int32_t *n_rows;
  int32_t bound, K, n_parts;
  MatmulPart parts[kMostParts];
};

}  // namespace luce
