// matmul_records.cuh: rows of x as matmul_some.cu has them in shared memory (SomeRows says how they lie there).
#pragma once

#include "matmul_some.cuh"
#include "matmul_type.cuh"

namespace luce {
namespace {

// Where a record has eight codes of a row.
LUCE_DEVICE int place_of_eight(int row, int eight) {
  return 32 * row + (f.span == 32 ? 8 * eight : 16 * (eight / 2 ^ row / 4 % 2) + eight % 2 * 8);
}

// Rows of x in shared memory, from a block of 32 values of k on. Where there are none, the scales are zeros and codes
// are left as they are. Nearly everything is under way before the first is waited for.
template <class Shape>
LUCE_DEVICE void take_rows(const MatmulArgs &a, int first_row, int n, int first_block, int n_blocks, uint8_t *records) {
  const int warp = threadIdx.x / kLanes, n_warps = blockDim.x / kLanes, lane = threadIdx.x % kLanes;
  const int n_there = min(n_blocks, a.K / 32 - first_block);
  const auto row_of_x = [&](int row) { return a.x + (first_row + row) * a.x_stride; };
#pragma unroll 1
  for (int row = warp; row < n; row += n_warps) {
    const uint8_t *from = row_of_x(row) + 32 * first_block;
    uint8_t *to = records + lane / 4 * Shape::record_bytes + place_of_eight(row, lane % 4);
#pragma unroll 4
    for (int i = lane; i < 4 * n_there; i += kLanes, to += kLanes / 4 * Shape::record_bytes) {
      copy_eight_async(to, from + 8 * i);
    }
  }
  commit_copies();
  constexpr int kHeld = 4;
#pragma unroll 1
  for (int row = warp; row < Shape::n_rows; row += n_warps) {
    const Activation x = {row_of_x(row), a.K};
#pragma unroll 1
    for (int first = lane; first < n_blocks; first += kHeld * kLanes) {
      float d[kHeld];
      int2 sums[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int b = first + i * kLanes;
        const bool is_there = row < n && b < n_there;
        d[i] = is_there ? x.d(first_block + b) : 0.0f;
        sums[i] = f.mins && is_there ? x.sums(first_block + b) : int2{0, 0};
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int b = first + i * kLanes;
        if (b >= n_blocks) break;
        float *to = reinterpret_cast<float *>(records + b * Shape::record_bytes + Shape::codes_bytes) +
                    row / 2 * 2 * (1 + Shape::n_sums) + row % 2;
        float d_sums[kSpans];
        scaled_sums(d[i], sums[i], d_sums);
        to[0] = d[i];
#pragma unroll
        for (int v = 0; v < Shape::n_sums; ++v) to[2 + 2 * v] = d_sums[v];
      }
    }
  }
  wait_for_copies<0>();
}

// What a lane wants of a record: codes of row g and scales of rows 2t and 2t + 1 of every eight.
template <class Shape>
struct Record {
  static constexpr int kColumns = Shape::n_columns, kPair = 2 * (1 + Shape::n_sums);

  uint32_t q[kColumns][2];
  float values[kColumns][kPair];

  LUCE_DEVICE void read(const uint8_t *record, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if constexpr (f.span == 32) {
        const uint2 both = *reinterpret_cast<const uint2 *>(record + 256 * j + 8 * lane);
        q[j][0] = both.x, q[j][1] = both.y;
      } else {
        const int at = place_of_eight(g, 0) + 4 * t;
        q[j][0] = *reinterpret_cast<const uint32_t *>(record + 256 * j + at);
        q[j][1] = *reinterpret_cast<const uint32_t *>(record + 256 * j + (at ^ 16));
      }
      const float *pair = reinterpret_cast<const float *>(record + Shape::codes_bytes) + (4 * j + t) * kPair;
      if constexpr (kPair == 4) {
        const float4 v = *reinterpret_cast<const float4 *>(pair);
        values[j][0] = v.x, values[j][1] = v.y, values[j][2] = v.z, values[j][3] = v.w;
      } else {
#pragma unroll
        for (int v = 0; v < kPair; v += 2) {
          const float2 two = *reinterpret_cast<const float2 *>(pair + v);
          values[j][v] = two.x, values[j][v + 1] = two.y;
        }
      }
    }
  }
};

}  // namespace
}  // namespace luce
