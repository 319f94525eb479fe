// matmul_one.cu: quantised weights, packed, times one row of Q8_A (matmul_type.cuh says in which order).
//
// A block stays on each multiprocessor for the whole launch: the row is made there once. Its teams of eight warps take
// tile after tile, a warp an eighth of K. Each warp has a ring in shared memory through which its part of the tiles
// comes: groups of 256 values of k, copied while those before them are added up, and the first ones before the kernel
// waits for what was launched earlier. Where a gate meets what it lets through, a block makes 32 outputs of both at a
// time, and what they become is quantised on the spot.
//
// One row would leave seven of eight columns of the matrix instruction idle, and its sums in a quarter of the lanes. So
// the columns are eight blocks of k: a lane has codes of x for one of them, the others are zero, and eight instructions
// into one accumulator leave in each lane what it then has to scale.

#include "matmul_one.cuh"

namespace luce {
namespace {

// A group of 256 values in shared memory times the row; sums are those of outputs g and g + 8, of every fourth block
// from t on. `at`: where a record has what this type wants.
template <int type, int at, class Row>
LUCE_DEVICE void add_group(const uint8_t *stage, const Row &row, int group, int lane, float (&sums)[2]) {
  using P = Packing<type>;
  constexpr Format f = P::f;
  const int g = lane / 4, t = lane % 4, mine = g % 2 * 4 + g / 2;
  LaneScales<type> scales;
  scales.read(stage, lane);
  float x[2][Row::Shape::record];
#pragma unroll
  for (int h = 0; h < 2; ++h) row.read_record(group * 8 + t + 4 * h, x[h]);
  uint32_t q[2];
  load_codes<type>(row.codes + group * 256 + 32 * mine, t, q);
  int first[4], second[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    first[h] = first[h + 2] = f.zero != 0 ? __float_as_int(x[h][f.zero != 0 ? at : 0]) : kMagic;
    second[h] = second[h + 2] = f.zero != 0 ? __float_as_int(x[h][f.zero != 0 && f.span == 16 ? at + 1 : 0]) : kMagic;
  }
#pragma unroll
  for (int u = 0; u < 256 / P::values; ++u) {
    UnitCodes<type> codes;
    codes.read(stage + u * P::bytes, lane);
#pragma unroll
    for (int i = 0; i < P::blocks; ++i) {
      const int b = u * P::blocks + i;
      uint32_t w[4];
      codes.registers(i, w);
      const uint32_t column[2] = {mine == b ? q[0] : 0, mine == b ? q[1] : 0};
      multiply<type>(first, second, w, column);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float d_sums[kSpansOf<type>] = {};
    if constexpr (f.mins) {
#pragma unroll
      for (int i = 0; i < kSpansOf<type>; ++i) d_sums[i] = x[h][at + i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] =
          add_block<type>(sums[r], first[2 * r + h], second[2 * r + h], scales.of(r, h, t), BlockOfX(x[h][0]), d_sums);
    }
  }
}

template <int type, int other>
LUCE_DEVICE void matmul_one(const MatmulArgs &a) {
  using Shape = OneRow<type, other>;
  constexpr int kGroupBytes = Shape::group_bytes;
  extern __shared__ uint8_t memory[];  // the rings of the warps, their arrivals, the row
  __shared__ float partial[2][kMostTeams][kWarps][kTileRows], both[2][2][kSide * kTileRows], room[2 * kMostPieces];
  __shared__ Output outputs[kMostTeams][kTileRows];  // of the thread that puts it
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, n_warps = a.n_teams * kWarps;
  const int team = threadIdx.x / kMatmulThreads, r = threadIdx.x % kMatmulThreads;
  uint64_t *const arrivals = reinterpret_cast<uint64_t *>(memory + n_warps * a.n_stages * kGroupBytes);
  const bool is_gated = a.gated.is_there();
  Tiles tiles(a, is_gated ? 2 * kSide : 1, is_gated ? a.n_teams : 1);
  Feed<type, other> feed(a, tiles, memory + warp * a.n_stages * kGroupBytes, arrivals + warp * a.n_stages);
  RowMaker maker(a.source, a.K);
#pragma unroll 1
  for (int i = 0; i < a.n_stages; ++i) feed.next();
  // Arguments are read from memory too: where outputs go is found out before the row is there.
  const auto find = [&] {
    if (r >= kTileRows || tiles.tile >= a.n_tiles()) return;
    const Place place(a, tiles.tile, kSide);
    outputs[team][r] = Output(*place.part, place.tile * kTileRows + r);
  };
  find();
  wait_for_previous();
  let_next_start();  // not before: one kernel that waits with its weights under way is enough

  const int n = true_rows(a.n_rows, a.bound);
  const Row<type, other> row(reinterpret_cast<uint8_t *>(arrivals + n_warps * a.n_stages), a.K);
  take_row(a, maker, row, room, n > 0);
  int stage = 0, half = 0, set = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (; tiles.tile < a.n_tiles(); half ^= 1) {
    const float2 rest = r < kTileRows ? outputs[team][r].rest() : float2{0, 0};
    const bool is_other = type != other && tiles.tile >= a.parts[a.n_of_type - 1].end_tile;
    float sums[2] = {};
#pragma unroll 1
    for (int group = feed.begin; group < feed.end; ++group) {
      wait_for_weights(&feed.arrivals[stage], parity);
      const uint8_t *from = feed.ring + stage * kGroupBytes;
      if (type == other || !is_other) {
        add_group<type, 1>(from, row, group, lane, sums);
      } else {
        add_group<other, Shape::first_of_other>(from, row, group, lane, sums);
      }
      __syncwarp();
      feed.next();
      if (++stage == a.n_stages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = __shfl_sync(kAllLanes, sums[i], lane / 4 * 4);
#pragma unroll
      for (int t = 1; t < 4; ++t) sum += __shfl_sync(kAllLanes, sums[i], lane / 4 * 4 + t);
      if (lane % 4 == 0) partial[half][team][warp % kWarps][lane / 4 + 8 * i] = sum;
    }
    meet_team(1 + team, kMatmulThreads);
    if (r < kTileRows && outputs[team][r].j >= 0 && n > 0) {
      const Output &output = outputs[team][r];
      const float y = output.put(tree_sum(kWarps, [&](int w) { return partial[half][team][w][r]; }), rest);
      if (is_gated) both[set][tiles.tile / kSide % 2][output.j % (kSide * kTileRows)] = y;
    }
    if (is_gated && tiles.is_last_of_set()) {
      meet_team(1 + kMostTeams, a.n_teams * kMatmulThreads);
      if (warp == 0 && n > 0) {
        const float y = activated(both[set][0][lane], a.gated.activation) * both[set][1][lane];
        const int first = tiles.tile / (2 * kSide) * kSide * kTileRows;
        if (a.gated.made) a.gated.made[first + lane] = y;
        if (a.gated.quantized) quantize_block(y, a.gated.quantized, a.parts[0].N, first);
      }
      set ^= 1;
    }
    tiles.next();
    find();
  }
}

}  // namespace

LUCE_MATMUL_KERNEL(LUCE_WEIGHT, 0, kMostTeams *kMatmulThreads)(const __grid_constant__ MatmulArgs a, uint32_t *) {
  matmul_one<LUCE_WEIGHT_TYPE, LUCE_WEIGHT_TYPE>(a);
}

// The same for matrices some of which are of the type that goes with this one in a file (LUCE_ALSO).
#ifdef LUCE_ALSO
LUCE_MATMUL_KERNEL(LUCE_WEIGHT, LUCE_ALSO, kMostTeams *kMatmulThreads)
(const __grid_constant__ MatmulArgs a, uint32_t *) {
  matmul_one<LUCE_WEIGHT_TYPE, LUCE_ALSO_TYPE>(a);
}
#endif

}  // namespace luce
