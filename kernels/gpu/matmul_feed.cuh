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

// The warps of a block that make a tile of every set, each with an eighth of K.
struct Team {
  int number, n_teams, n_warps;  // this one of the block's; warps of each
  int first_eighth;              // of the block

  LUCE_DEVICE explicit Team(int log_splits)
      : number(threadIdx.x / kLanes >> (3 - log_splits)),
        n_teams(blockDim.x / kLanes >> (3 - log_splits)),
        n_warps(8 >> log_splits),
        first_eighth(blockIdx.x << (3 - log_splits)) {}

  LUCE_DEVICE int eighth() const { return first_eighth + threadIdx.x / kLanes % n_warps; }
  LUCE_DEVICE int thread() const { return threadIdx.x % (n_warps * kLanes); }
  LUCE_DEVICE int tile(int set) const { return set * n_teams + number; }
  // Waits until all of its threads are here, and sees what they have written.
  LUCE_DEVICE void meet() const {
    if (n_warps > 1) {
      meet_team(1 + number, n_warps * kLanes);
    } else {
      __syncwarp();
    }
  }
};

// The groups of a warp's tiles on their way into its ring, tile after tile.
template <class Shape>
struct Feed {
  const MatmulSomeArgs &s;
  const Team &team;
  int n_units, begin, end;    // groups of this warp
  int set, group, stage = 0;  // of the next copy
  uint8_t *ring;
  uint64_t *arrivals;
  const uint8_t *weight;       // of the tile
  int tile = 0, end_tile = 0;  // of the launch; end of the tile's matrix

  // `ring` and `arrivals`: of this warp, in shared memory.
  LUCE_DEVICE Feed(const MatmulSomeArgs &s, const Team &team, uint8_t *ring, uint64_t *arrivals)
      : s(s), team(team), n_units((s.matmul.K + P::values - 1) / P::values), ring(ring), arrivals(arrivals) {
    const int n_groups = (n_units + kUnits - 1) / kUnits, lane = threadIdx.x % kLanes;
    begin = group = n_groups * team.eighth() / 8;
    end = n_groups * (team.eighth() + 1) / 8;
    set = begin < end ? s.first_set + blockIdx.z : s.end_set;
    // Units that a weight has not meet zeros: they can be anything finite.
    if (n_units % kUnits != 0) {
#pragma unroll 1
      for (int i = lane; i < s.stages * Shape::group_bytes / 16; i += kLanes) {
        reinterpret_cast<uint4 *>(ring)[i] = {0, 0, 0, 0};
      }
      __syncwarp();
    }
    if (lane < s.stages) begin_arrivals(&arrivals[lane]);
    __syncwarp();
  }

  // Copies a group to the next stage. Where there is no tile, nobody looks at what the last one gives again.
  LUCE_DEVICE void next() {
    if (set >= s.end_set) return;
    if (group == begin) find();
    bring_weights(ring + stage * Shape::group_bytes, weight + int64_t{group} * Shape::group_bytes,
                  min(kUnits, n_units - group * kUnits) * P::bytes, &arrivals[stage]);
    if (++stage == s.stages) stage = 0;
    if (++group < end) return;
    group = begin;
    set += gridDim.z;
  }

 private:
  // The tile of the set. Which matrix it belongs to is asked once for all tiles of a matrix.
  LUCE_DEVICE void find() {
    const int before = tile;
    tile = min(team.tile(set), s.matmul.n_tiles() - 1);
    if (tile < end_tile) {
      weight += (tile - before) * P::tile_bytes(s.matmul.K);
      return;
    }
    const Matrix matrix(s.matmul, tile);
    weight = matrix.of(&MatmulPart::weight) + matrix.tile * P::tile_bytes(s.matmul.K);
    end_tile = matrix.of(&MatmulPart::end_tile);
  }
};

}  // namespace
}  // namespace luce
