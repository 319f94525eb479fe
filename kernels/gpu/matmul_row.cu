// matmul_row.cu: F32, F16 or BF16 weights, as they lie in the file, times one row of F32, with the order of sums of
// matmul_rows.cu.
//
// A block stays on each multiprocessor, the row is made there once, and weights come through rings in shared memory, as
// in matmul_one.cu. A warp makes two outputs, which halves what it reads of the row: where a gate meets what it lets
// through, one of each.

#include "matmul_floats.cuh"

namespace luce {
namespace {

// Two outputs of a warp: rows of weights at one place of each part where they are gated, else eight rows apart.
struct TwoRows {
  const MatmulPart *parts[2];
  int j[2];

  LUCE_DEVICE TwoRows(const MatmulArgs &a, int tile) {
    const bool is_gated = a.gated.is_there();
    const Place place(a, tile);
    const int first = place.tile * (is_gated ? kRowTile / 2 : kRowTile) + threadIdx.x % kMatmulThreads / kLanes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      parts[i] = is_gated ? a.parts + i : place.part;
      j[i] = is_gated ? first : first + i * kRowTile / 2;
    }
  }
};

// The rows of a warp, tile after tile, on their way into its ring: a stage has a piece of each.
template <int type>
struct RowFeed {
  static constexpr int kValueBytes = sizeof(typename Weight<type>::Value);
  static constexpr int kStage = kRowStageBytes / kValueBytes;  // values of a row

  const MatmulArgs &a;
  Tiles tiles;
  int k = 0, stage = 0;  // of the next copy
  uint8_t *ring;
  uint64_t *arrivals;
  const uint8_t *weights[2];

  // `ring` and `arrivals`: of this warp, in shared memory.
  LUCE_DEVICE RowFeed(const MatmulArgs &a, const Tiles &tiles, uint8_t *ring, uint64_t *arrivals)
      : a(a), tiles(tiles), ring(ring), arrivals(arrivals) {
    const int lane = threadIdx.x % kLanes;
    if (this->tiles.tile >= a.n_tiles()) return;
    if (lane < 2 * a.n_stages) begin_arrivals(&arrivals[lane]);
    __syncwarp();
    find();
  }

  // Copies a piece of both rows to the next stage.
  LUCE_DEVICE void next() {
    if (tiles.tile >= a.n_tiles()) return;
    const int n_bytes = min(kStage, a.K - k) * kValueBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bring_weights(ring + (2 * stage + i) * kRowStageBytes, weights[i] + k * kValueBytes, n_bytes,
                    &arrivals[2 * stage + i]);
    }
    if (++stage == a.n_stages) stage = 0;
    if ((k += kStage) < a.K) return;
    k = 0;
    tiles.next();
    find();
  }

 private:
  LUCE_DEVICE void find() {
    if (tiles.tile >= a.n_tiles()) return;
    const TwoRows rows(a, tiles.tile);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights[i] = rows.parts[i]->weight + min(rows.j[i], rows.parts[i]->N - 1) * rows.parts[i]->weight_stride;
    }
  }
};

// Where the row has its fours in shared memory: those that a lane reads at once lie apart, so that lanes do not meet in
// a bank.
template <int kValues>
LUCE_DEVICE float4 *place_of_four(float4 *x, int K, int four) {
  constexpr int kEach = kValues / 4;
  return x + four % kEach * (K / kValues) + four / kEach;
}

template <int type>
LUCE_DEVICE void matmul_row(const MatmulArgs &a) {
  using Feed = RowFeed<type>;
  constexpr int kValues = 16 / Feed::kValueBytes, kStep = kLanes * kValues;
  extern __shared__ uint8_t memory[];  // the rings of the warps, their arrivals, the row
  __shared__ float room[2 * kMostPieces];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, n_warps = a.n_teams * kRowTile / 2;
  uint64_t *const arrivals = reinterpret_cast<uint64_t *>(memory + n_warps * a.n_stages * 2 * kRowStageBytes);
  float4 *const x = reinterpret_cast<float4 *>(arrivals + n_warps * a.n_stages * 2);
  Tiles tiles(a, 1, 1);
  Feed feed(a, tiles, memory + warp * a.n_stages * 2 * kRowStageBytes, arrivals + warp * a.n_stages * 2);
  RowMaker maker(a.source, a.K);
#pragma unroll 1
  for (int i = 0; i < a.n_stages; ++i) feed.next();
  wait_for_previous();
  let_next_start();

  const int n = true_rows(a.n_rows, a.bound);
  if (a.source.x == nullptr) {
    const float4 *from = reinterpret_cast<const float4 *>(a.x);
    for (int u = threadIdx.x; u < a.K / 4; u += blockDim.x) *place_of_four<kValues>(x, a.K, u) = from[u];
  } else {
    const bool is_first = blockIdx.x == 0 && n > 0;
    maker.run(room, is_first, [&](int k, float4 v) {
      if (k >= a.K) return;
      *place_of_four<kValues>(x, a.K, k / 4) = v;
      if (is_first && a.source.made) *reinterpret_cast<float4 *>(a.source.made + k) = v;
    });
  }
  __syncthreads();
  int stage = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (; tiles.tile < a.n_tiles(); tiles.next()) {
    Output own = {};  // of lane i the output of row i
    if (lane < 2) {
      const TwoRows rows(a, tiles.tile);
      own = lane == 0 ? Output(*rows.parts[0], rows.j[0]) : Output(*rows.parts[1], rows.j[1]);
    }
    const float2 rest = own.rest();
    float sums[2] = {};
#pragma unroll 1
    for (int begin = 0; begin < a.K; begin += Feed::kStage) {
#pragma unroll
      for (int i = 0; i < 2; ++i) wait_for_weights(&feed.arrivals[2 * stage + i], parity);
      const uint4 *from = reinterpret_cast<const uint4 *>(feed.ring + stage * 2 * kRowStageBytes) + lane;
      const int end = min(a.K, begin + Feed::kStage);
#pragma unroll 2
      for (int k = begin + lane * kValues; k < end; k += kStep, from += kLanes) {
        Piece<type, kValues> pieces[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) pieces[i].read(from + i * kRowStageBytes / 16);
        float values[kValues];
#pragma unroll
        for (int v = 0; v < kValues; v += 4) {
          load_x<4>(reinterpret_cast<const float *>(place_of_four<kValues>(x, a.K, (k + v) / 4)),
                    *reinterpret_cast<float (*)[4]>(values + v));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int v = 0; v < kValues; ++v) sums[i] = fmaf(pieces[i][v], values[v], sums[i]);
        }
      }
      __syncwarp();
      feed.next();
      if (++stage == a.n_stages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = sum_of_warp(sums[i]);
    float y = lane == 0 ? sums[0] : sums[1];
    const bool puts = lane < 2 && own.j >= 0 && n > 0;
    if (puts) y = own.put(y, rest);
    const float other = shuffle_xor(y, 1);
    if (a.gated.is_there() && puts && lane == 0) a.gated.made[own.j] = activated(y, a.gated.activation) * other;
  }
}

}  // namespace

#define LUCE_MATMUL_ROW(name, type)                                      \
  LUCE_GLOBAL_WITHIN(matmul_##name##_row, kMostTeams *kMatmulThreads, 1) \
  (const __grid_constant__ MatmulArgs a, uint32_t *) {                   \
    matmul_row<type>(a);                                                 \
  }
LUCE_MATMUL_ROW(f32, LUCE_F32)
LUCE_MATMUL_ROW(f16, LUCE_F16)
LUCE_MATMUL_ROW(bf16, LUCE_BF16)

}  // namespace luce
