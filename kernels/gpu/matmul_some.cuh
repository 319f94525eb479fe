// matmul_some.cuh: what a launch of matmul_some.cu takes, and how it divides a block's shared memory.
#pragma once

#include "matmul.cuh"

namespace luce {

constexpr int kMostStages = 4, kMostWarps = 16;

// The grid is splits of K, chunks of rows, and blocks that take sets of tiles in turn. A block has 8 or 16 warps: teams
// of as many as it has eighths of K, each of which makes a tile of every set.
struct MatmulSomeArgs {
  MatmulArgs matmul;
  int32_t log_splits;          // blocks that share a tile: 1, 2, 4 or 8
  int32_t first_row;           // of the first chunk of as many rows as the kernel takes
  int32_t first_set, end_set;  // of the tiles that a block makes at once
  int32_t stages;              // of a warp's ring
  int32_t n_groups;            // of 256 values of k whose rows of x are there at once: all that a block wants, or fewer
  float *partial;              // where blocks that share tiles leave their sums
  uint32_t *arrivals;          // zero, for each tile of a set, set and chunk: blocks that have left theirs
};

// A warp makes a tile for 8 * kColumns rows.
template <int type, int kColumns>
struct SomeRows {
  using P = Packing<type>;
  static constexpr int n_columns = kColumns, n_rows = 8 * kColumns;
  static constexpr int group_bytes = 256 / P::values * P::bytes;
  static constexpr int partial_stride = kTileRows + 4;            // so that the lanes of a warp meet different banks
  static constexpr int partial_floats = n_rows * partial_stride;  // of a warp

  // Of 32 values of k of all rows: codes, then for each pair of rows the scales, and those times sums of codes. Records
  // that follow each other begin in different banks. With two scales to 32 values the halves of a row's codes change
  // places in every other four rows, so that lanes that read one half meet different banks.
  static constexpr int n_sums = P::f.mins ? 32 / P::f.span : 0;
  static constexpr int codes_bytes = 32 * n_rows, plain_bytes = codes_bytes + 4 * (1 + n_sums) * n_rows;
  static constexpr int record_bytes = plain_bytes % 64 == 0 ? plain_bytes + 32 : plain_bytes;

  // With rows of so many groups of 256 values.
  static constexpr int64_t shared_bytes(int n_warps, int64_t n_groups, int stages) {
    return n_warps * (stages * group_bytes + 4 * partial_floats) + n_groups * 8 * record_bytes;
  }
};

// Puts quantised weights times rows of Q8_A on the stream.
void launch_some(int32_t type, const MatmulArgs &all, Launcher &launcher);

}  // namespace luce
