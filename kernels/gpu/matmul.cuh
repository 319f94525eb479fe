// matmul.cuh: what a launch of luce_matmul takes: matrices of one type that meet the same rows of x, side by side.
#pragma once

#include "pack.cuh"
#include "row_source.cuh"

namespace luce {

constexpr int kMostParts = 3;  // q, k, v; gate, up

struct MatmulPart {
  const uint8_t *weight;
  const float *bias, *add;  // null: none
  float *out;
  int64_t weight_stride, add_stride, out_stride;  // bytes from row to row
  int32_t N, end_tile;                            // tiles of this part and of those before it
};

struct MatmulArgs {
  const uint8_t *x;
  int64_t x_stride;
  const int32_t *n_rows;
  int32_t bound, K, n_parts;
  MatmulPart parts[kMostParts];
  RowSource source;  // of one row: x is made by every block, and what is in memory is not read

  constexpr int n_tiles() const { return parts[n_parts - 1].end_tile; }
};

// Which part of a launch a tile belongs to, and its number there.
struct Place {
  const MatmulPart *part;
  int tile;

  LUCE_DEVICE Place(const MatmulArgs &a, int tile) : part(a.parts), tile(tile) {
    while (tile >= part->end_tile) ++part;
    if (part != a.parts) this->tile -= part[-1].end_tile;
  }
};

// What is added to output j of a row beside the products: read early, added last.
struct Rest {
  float bias = 0, add = 0;

  Rest() = default;
  LUCE_DEVICE Rest(const MatmulPart &part, int j, int token) {
    if (part.bias) bias = part.bias[j];
    if (part.add) add = row_of(part.add, part.add_stride, token)[j];
  }

  LUCE_DEVICE void put(const MatmulPart &part, int j, int token, float y) const {
    if (part.bias) y += bias;
    if (part.add) y += add;
    row_of(part.out, part.out_stride, token)[j] = y;
  }

 private:
  template <class T>
  LUCE_DEVICE static T *row_of(T *p, int64_t stride, int token) {
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(p) + token * stride);
  }
};

// What matmul_one.cu has in shared memory: a ring for each warp, of groups of 256 values of k, and the row.
template <int type>
struct OneRow {
  static constexpr int group_bytes = 256 / Packing<type>::values * Packing<type>::bytes;
  static constexpr int ring_bytes = 40 << 10;  // of all warps, where two groups for each are not more
  static constexpr int n_warps = kMatmulThreads / kLanes;
  static constexpr int stages = ring_bytes / (n_warps * group_bytes) > 2 ? ring_bytes / (n_warps * group_bytes) : 2;
  static constexpr int64_t shared_bytes(int64_t K) { return n_warps * stages * group_bytes + K / 4 * 5; }
};
constexpr int kRowTile = 8;  // outputs of a block of matmul_rows.cu for one row: a warp makes one
constexpr int kRowStages = 3, kRowStageBytes = 2048;  // of the ring of each of its warps
constexpr int64_t row_shared_bytes(int64_t K) {
  return kRowTile * kRowStages * kRowStageBytes + 4 * K;
}

constexpr int kFittingBlocks = 4;  // of those two kernels, on a multiprocessor: its registers are divided so

// ---- host code ----

// Matrices that meet one row, after the ops that make it: how many of the calls are one launch. 0: the calls do not
// begin so.
int plan_sourced(const luce_call *calls, int n_calls, const Launcher &launcher, MatmulArgs &to);
void launch_matmul(const luce_matmul_args &first, const MatmulArgs &all, Launcher &launcher);

// Of float weights: whether x is one row, and read 16 bytes at a time as the weight's rows are; the kernel for that;
// and the launch for anything else.
bool is_one_wide_row(const luce_matmul_args &a);
int row_kernel(int32_t type);
void launch_matmul_rows(const luce_matmul_args &a, Launcher &launcher);

}  // namespace luce
