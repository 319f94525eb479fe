// matmul_some.cu: quantised weights, packed, times any number of rows of Q8_A (matmul_type.cuh says in which order).
//
// A block makes a tile for up to 16 rows.

#include "matmul_type.cuh"

namespace luce {
namespace {

// kTiles: of 8 rows of x.
template <int kTiles>
LUCE_DEVICE void matmul_some(const MatmulArgs &a) {
  constexpr int kTokens = 8 * kTiles;
  __shared__ float partial[kWarps][kTokens][kTileRows];
  let_next_start();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
  const Place place(a, blockIdx.x);
  const int n_units = (a.K + P::values - 1) / P::values, n_groups = (n_units + kUnits - 1) / kUnits;
  const int end = min(n_groups * (warp + 1) / kWarps * kUnits, n_units);
  int u = n_groups * warp / kWarps * kUnits;
  const uint8_t *tile = place.part->weight + place.tile * P::tile_bytes(a.K);
  Codes next;
  Scales next_scales;
  const auto load = [&](int unit) {
    next.load(tile + int64_t{unit} * P::bytes, lane);
    next_scales.load(tile + int64_t{unit} * P::bytes, lane);
  };
  if (u < end) load(u);
  wait_for_previous();

  const int first_row = blockIdx.y * kTokens, n = min(true_rows(a.n_rows, a.bound) - first_row, kTokens);
  if (n <= 0) return;
  // Rows that are not there are read as the last that is; nobody looks at what they make.
  const auto row_of = [&](int c) { return a.x + (first_row + min(c, n - 1)) * a.x_stride; };
  float sums[4][kTiles][4] = {};
  for (; u < end; ++u) {
    const Codes codes = next;
    const Scales scales = next_scales;
    if (u + 1 < end) load(u + 1);
#pragma unroll
    for (int b = 0; b < P::blocks; ++b) {
      const int k_block = u * P::blocks + b;
      if (32 * k_block >= a.K) break;
      uint32_t registers[4];
      codes.registers(b, registers);
      const Scale scale[2] = {scales.of(0, b), scales.of(1, b)};
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t q[2];
        load_codes(row_of(8 * j + g) + 32 * k_block, t, q);
        float d[2];
        int2 sums_of_x[2] = {};
        int first[4], second[4];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Activation x = {row_of(8 * j + 2 * t + c), a.K};
          d[c] = x.d(k_block);
          if (f.mins || f.zero != 0) sums_of_x[c] = x.sums(k_block);
          const int2 from = start(sums_of_x[c]);
          first[c] = first[c + 2] = from.x;
          second[c] = second[c + 2] = from.y;
        }
        multiply(first, second, registers, q);
        // Of units of two blocks, those of even number begin every fourth block anew.
        const auto add = [&](float (&sum)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[i] = add_block(sum[i], first[i], second[i], scale[i / 2], d[i % 2], sums_of_x[i % 2]);
          }
        };
        if (P::blocks == 8) {
          add(sums[b % 4][j]);
        } else if (u % 2 == 0) {
          add(sums[b][j]);
        } else {
          add(sums[b + 2][j]);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = ((sums[0][j][i] + sums[1][j][i]) + sums[2][j][i]) + sums[3][j][i];
      partial[warp][8 * j + 2 * t + i % 2][g + i / 2 * 8] = sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n * kTileRows; i += kMatmulThreads) {
    const int token = i / kTileRows, r = i % kTileRows, j = place.tile * kTileRows + r;
    if (j >= place.part->N) continue;
    float y = partial[0][token][r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) y += partial[w][token][r];
    Rest(*place.part, j, first_row + token).put(*place.part, j, first_row + token, y);
  }
}

}  // namespace

LUCE_MATMUL_KERNEL(LUCE_WEIGHT, 1, 2)(const __grid_constant__ MatmulArgs a, uint32_t *) {
  matmul_some<1>(a);
}
LUCE_MATMUL_KERNEL(LUCE_WEIGHT, 2, 2)(const __grid_constant__ MatmulArgs a, uint32_t *) {
  matmul_some<2>(a);
}

}  // namespace luce
