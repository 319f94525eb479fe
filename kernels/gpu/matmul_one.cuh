// matmul_one.cuh: what matmul_one.cu has in shared memory: the row, and weights on their way.
#pragma once

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

}  // namespace
}  // namespace luce
