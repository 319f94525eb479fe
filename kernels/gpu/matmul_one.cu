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

#include "matmul_type.cuh"
#include "quantize.cuh"

namespace luce {
namespace {

// The row in shared memory, for weights of one or of two types. Beyond its end scales are zeros, and codes are
// anything.
template <int type, int other>
struct Row {
  using Shape = OneRow<type, other>;
  uint8_t *codes;
  float *records;

  LUCE_DEVICE Row(uint8_t *memory, int K)
      : codes(memory), records(reinterpret_cast<float *>(memory + Shape::padded(K))) {}

  LUCE_DEVICE void put_record(int b, float d, int2 sums) const {
    float v[4] = {used(d)};
    put_values<type>(v[0], sums, v + 1);
    if constexpr (type != other) put_values<other>(v[0], sums, v + Shape::first_of_other);
    float *to = records + b * Shape::record;
    if constexpr (Shape::record == 1) *to = v[0];
    if constexpr (Shape::record == 2) *reinterpret_cast<float2 *>(to) = {v[0], v[1]};
    if constexpr (Shape::record == 4) *reinterpret_cast<float4 *>(to) = {v[0], v[1], v[2], v[3]};
  }

  LUCE_DEVICE void read_record(int b, float (&v)[Shape::record]) const {
    const float *from = records + b * Shape::record;
    if constexpr (Shape::record == 1) v[0] = *from;
    if constexpr (Shape::record == 2) {
      const float2 two = *reinterpret_cast<const float2 *>(from);
      v[0] = two.x, v[1] = two.y;
    }
    if constexpr (Shape::record == 4) {
      const float4 four = *reinterpret_cast<const float4 *>(from);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    }
  }

 private:
  // What a type wants beside the scale.
  template <int of>
  LUCE_DEVICE static void put_values(float d, int2 sums, float *to) {
    if constexpr (kFormat<of>.mins) {
      float d_sums[kSpansOf<of>];
      scaled_sums<of>(d, sums, d_sums);
#pragma unroll
      for (int i = 0; i < kSpansOf<of>; ++i) to[i] = d_sums[i];
    } else if constexpr (kFormat<of>.zero != 0) {
      const int2 from = start<of>(sums);
      to[0] = __int_as_float(from.x);
      if constexpr (kSpansOf<of> == 2) to[1] = __int_as_float(from.y);
    }
  }
};

// The row is made here, or copied. The first block also puts it where else it is wanted.
template <class Row>
LUCE_DEVICE void take_row(const MatmulArgs &a, RowMaker &maker, const Row &row, float *room, bool is_there) {
  const RowSource &s = a.source;
  const int n_blocks = a.K / 32;
  for (int b = n_blocks + threadIdx.x; b < Row::Shape::padded(a.K) / 32; b += blockDim.x) {
    row.put_record(b, 0, {0, 0});
  }
  if (s.x == nullptr) {
    const bool is_aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
    for (int k = 16 * threadIdx.x; k < a.K; k += 16 * blockDim.x) {
      const uint2 *from = reinterpret_cast<const uint2 *>(a.x + k);
      uint4 v;
      if (is_aligned) {
        v = *reinterpret_cast<const uint4 *>(from);
      } else {
        v = {from[0].x, from[0].y, from[1].x, from[1].y};
      }
      *reinterpret_cast<uint4 *>(row.codes + k) = v;
    }
    const Activation x = {a.x, a.K};
    for (int b = threadIdx.x; b < n_blocks; b += blockDim.x) row.put_record(b, x.d(b), x.sums(b));
    __syncthreads();
    return;
  }
  const bool is_first = blockIdx.x == 0 && is_there;
  maker.run(room, is_first, [&](int k, float4 v) {
    const FourCodes four(v);
    const int beyond = shuffle_xor(four.sum, 4);
    if (k >= a.K) return;
    *reinterpret_cast<char4 *>(row.codes + k) = four.codes;
    if (k % 32 == 0) row.put_record(k / 32, four.d, {four.sum, beyond});
    if (is_first && s.made) *reinterpret_cast<float4 *>(s.made + k) = v;
    if (is_first && s.quantized) four.put(s.quantized, a.K, k);
  });
  __syncthreads();
}

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

// The groups of a warp, tile after tile, on their way into its ring.
template <int type, int other>
struct Feed {
  using P = Packing<type>;
  static constexpr int kGroupBytes = OneRow<type, other>::group_bytes;
  static_assert(P::values == Packing<other>::values);

  const MatmulArgs &a;
  int n_units, begin, end;  // units of a row of weights; groups of this warp
  Tiles tiles;
  int group, stage = 0;  // of the next copy
  uint8_t *ring;
  uint64_t *arrivals;
  const uint8_t *weight = nullptr;
  bool is_other = false;

  // `ring` and `arrivals`: of this warp, in shared memory.
  LUCE_DEVICE Feed(const MatmulArgs &a, const Tiles &tiles, uint8_t *ring, uint64_t *arrivals)
      : a(a), n_units((a.K + P::values - 1) / P::values), tiles(tiles), ring(ring), arrivals(arrivals) {
    const int n_groups = (n_units + kUnits - 1) / kUnits, warp = threadIdx.x % kMatmulThreads / kLanes;
    const int lane = threadIdx.x % kLanes;
    begin = group = n_groups * warp / kWarps;
    end = n_groups * (warp + 1) / kWarps;
    if (begin == end) this->tiles.tile = a.n_tiles();
    if (this->tiles.tile >= a.n_tiles()) return;
    // Units that a weight has not meet zeros: they can be anything finite.
    if (n_units % kUnits != 0 && end == n_groups) {
#pragma unroll 1
      for (int i = lane; i < a.n_stages * kGroupBytes / 16; i += kLanes) {
        reinterpret_cast<uint4 *>(ring)[i] = {0, 0, 0, 0};
      }
      __syncwarp();
    }
    if (lane < a.n_stages) begin_arrivals(&arrivals[lane]);
    __syncwarp();
    find();
  }

  // Copies a group to the next stage.
  LUCE_DEVICE void next() {
    if (tiles.tile >= a.n_tiles()) return;
    const int unit_bytes = is_other ? Packing<other>::bytes : P::bytes;
    bring_weights(ring + stage * kGroupBytes, weight + int64_t{group} * kUnits * unit_bytes,
                  min(kUnits, n_units - group * kUnits) * unit_bytes, &arrivals[stage]);
    if (++stage == a.n_stages) stage = 0;
    if (++group < end) return;
    group = begin;
    tiles.next();
    find();
  }

 private:
  LUCE_DEVICE void find() {
    if (tiles.tile >= a.n_tiles()) return;
    const Place place(a, tiles.tile, kSide);
    is_other = type != other && place.part - a.parts >= a.n_of_type;
    weight = place.part->weight + place.tile * (is_other ? Packing<other>::tile_bytes(a.K) : P::tile_bytes(a.K));
  }
};

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
