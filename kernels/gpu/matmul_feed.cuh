// matmul_feed.cuh: weights of matmul_some.cu on their way to shared memory.
#pragma once

#include "matmul_some.cuh"
#include "matmul_type.cuh"

namespace luce {
namespace {

// The matrix of a launch that a tile belongs to, and its number there. What is wanted of the matrix is chosen from the
// arguments, where an index would be a load.
struct Matrix {
  const MatmulArgs &a;
  int which, tile;

  LUCE_DEVICE Matrix(const MatmulArgs &a, int tile_of_launch)
      : a(a),
        which((tile_of_launch >= a.parts[0].end_tile) + (a.n_parts > 2 && tile_of_launch >= a.parts[1].end_tile)),
        tile(tile_of_launch - pick(0, a.parts[0].end_tile, a.parts[1].end_tile)) {}

  template <class T>
  LUCE_DEVICE T of(T MatmulPart::*field) const {
    return pick(a.parts[0].*field, a.parts[1].*field, a.parts[2].*field);
  }
  LUCE_DEVICE MatmulPart part() const {
    using M = MatmulPart;
    return {of(&M::weight),     of(&M::bias),       of(&M::add), of(&M::out),     of(&M::weight_stride),
            of(&M::add_stride), of(&M::out_stride), of(&M::N),   of(&M::end_tile)};
  }

 private:
  template <class T>
  LUCE_DEVICE T pick(T first, T second, T third) const {
    return which == 0 ? first : which == 1 ? second : third;
  }
};

// The groups of a warp's tiles on their way into its ring, set after set. Lane i knows where tile i of the set is.
template <class Shape, int kTiles>
struct Feed {
  const MatmulSomeArgs &s;
  int team, n_units, begin, end;  // groups of this warp
  int set, group, stage = 0;      // of the next copy
  uint8_t *ring;
  uint64_t *arrivals;
  const uint8_t *weight;

  // `ring` and `arrivals`: of this warp, in shared memory.
  LUCE_DEVICE Feed(const MatmulSomeArgs &s, int team, int eighth, uint8_t *ring, uint64_t *arrivals)
      : s(s), team(team), n_units((s.matmul.K + P::values - 1) / P::values), ring(ring), arrivals(arrivals) {
    const int n_groups = (n_units + kUnits - 1) / kUnits, lane = threadIdx.x % kLanes;
    begin = group = n_groups * eighth / kWarps;
    end = n_groups * (eighth + 1) / kWarps;
    set = begin < end ? s.first_set + blockIdx.z : s.end_set;
    // Units that a weight has not meet zeros: they can be anything finite.
    if (n_units % kUnits != 0) {
#pragma unroll 1
      for (int i = lane; i < s.stages * Shape::stage_bytes / 16; i += kLanes) {
        reinterpret_cast<uint4 *>(ring)[i] = {0, 0, 0, 0};
      }
      __syncwarp();
    }
    if (lane < s.stages * kTiles) begin_arrivals(&arrivals[lane]);
    __syncwarp();
  }

  // Copies a group of each tile to the next stage.
  LUCE_DEVICE void next() {
    if (set >= s.end_set) return;
    if (group == begin) find();
    const int n_bytes = min(kUnits, n_units - group * kUnits) * P::bytes;
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      const uint8_t *from =
          reinterpret_cast<const uint8_t *>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(weight), i));
      bring_weights(ring + stage * Shape::stage_bytes + i * Shape::group_bytes,
                    from + int64_t{group} * Shape::group_bytes, n_bytes, &arrivals[stage * kTiles + i]);
    }
    if (++stage == s.stages) stage = 0;
    if (++group < end) return;
    group = begin;
    set += gridDim.z;
  }

 private:
  // Where there is no tile, nobody looks at what the last one gives again.
  LUCE_DEVICE void find() {
    const MatmulArgs &a = s.matmul;
    const int tile = ((set << s.log_splits) + team) * kTiles + threadIdx.x % kTiles;
    const Matrix matrix(a, min(tile, a.n_tiles() - 1));
    weight = matrix.of(&MatmulPart::weight) + matrix.tile * P::tile_bytes(a.K);
  }
};

}  // namespace
}  // namespace luce
