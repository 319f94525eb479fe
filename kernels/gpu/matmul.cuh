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

// Of two parts, one the gate: activation(gate) * the other, as floats, as Q8_A, or both; null: not that.
struct Gated {
  float *made;
  uint8_t *quantized;
  int32_t activation;

  constexpr bool is_there() const { return made != nullptr || quantized != nullptr; }
};

struct MatmulArgs {
  const uint8_t *x;
  int64_t x_stride;
  const int32_t *n_rows;
  int32_t bound, K, n_parts;
  int32_t type, other, n_of_type;  // of the weights: of the first parts, and of the others where there are some
  MatmulPart parts[kMostParts];
  RowSource source;  // of one row: x is made by every block, and what is in memory is not read

  Gated gated;                // of one row
  int32_t n_teams, n_stages;  // of the kernels for one row: that multiply, and of the ring of a warp

  constexpr int n_tiles() const { return parts[n_parts - 1].end_tile; }
};

// ---- one row: blocks of one to four teams of kMatmulThreads, which stay, and meet in the row alone ----

constexpr int kMostTeams = 4;
constexpr int kSide = 2;  // tiles side by side of the gate, then as many of what it lets through: 32 outputs of each

// Which part of a launch a tile belongs to, and its number there. `side`: of quantised gated outputs, so many tiles of
// the one part come before the same ones of the other.
struct Place {
  const MatmulPart *part;
  int tile;

  LUCE_DEVICE Place(const MatmulArgs &a, int tile, int side = 0) : part(a.parts), tile(tile) {
    if (a.gated.is_there()) {
      if (side == 0) return;
      part += tile / side % 2;
      this->tile = tile / (2 * side) * side + tile % side;
      return;
    }
    while (tile >= part->end_tile) ++part;
    if (part != a.parts) this->tile -= part[-1].end_tile;
  }
};

// The tiles of a team, one after the other: every so many-th; of gated outputs a whole set is in a block.
struct Tiles {
  int tile, n_in_set, in_set, to_next_set;
  int n = 0;

  // Sets of `set` tiles, shared by `sharing` teams: by one, or by all.
  LUCE_DEVICE Tiles(const MatmulArgs &a, int set, int sharing) {
    const int team = threadIdx.x / kMatmulThreads, place = sharing > 1 ? 0 : team;
    n_in_set = set / sharing;
    in_set = sharing;
    to_next_set = set * (sharing > 1 ? 1 : a.n_teams) * gridDim.x - (n_in_set - 1) * sharing;
    tile = set * (blockIdx.x + gridDim.x * place) + team - place;
    if (team >= a.n_teams) tile = a.n_tiles();
  }

  LUCE_DEVICE bool is_last_of_set() const { return n + 1 == n_in_set; }
  LUCE_DEVICE void next() {
    tile += is_last_of_set() ? to_next_set : in_set;
    n = is_last_of_set() ? 0 : n + 1;
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

// An output of one row: null is nothing, or nowhere.
struct Output {
  float *out;
  const float *bias, *add;
  int j;  // of its part; -1: there is none

  Output() = default;
  LUCE_DEVICE Output(const MatmulPart &part, int j)
      : out(part.out && j < part.N ? part.out + j : nullptr),
        bias(part.bias && j < part.N ? part.bias + j : nullptr),
        add(part.add && j < part.N ? part.add + j : nullptr),
        j(j < part.N ? j : -1) {}

  // What is added: asked for early.
  LUCE_DEVICE float2 rest() const { return {bias ? *bias : 0, add ? *add : 0}; }
  LUCE_DEVICE float put(float y, float2 rest) const {
    if (bias) y += rest.x;
    if (add) y += rest.y;
    if (out) *out = y;
    return y;
  }
};

// What matmul_one.cu has in shared memory: the rings of all warps, of groups of 256 values of k, and the row: its
// codes, then of each 32 of them the scale and what goes with it.
template <int type, int other = type>
struct OneRow {
  using P = Packing<type>;
  template <int of>
  static constexpr int n_values = Packing<of>::f.mins || Packing<of>::f.zero != 0 ? 32 / Packing<of>::f.span : 0;
  template <int of>
  static constexpr int bytes = 256 / Packing<of>::values * Packing<of>::bytes;
  static constexpr int group_bytes = bytes<type> > bytes<other> ? bytes<type> : bytes<other>;
  static constexpr int first_of_other = 1 + n_values<type>;
  static constexpr int n = first_of_other + (type != other ? n_values<other> : 0);
  static constexpr int record = n == 3 ? 4 : n;  // floats of 32 values
  static_assert(n <= 4);
  static constexpr int64_t padded(int64_t K) { return (K + 255) / 256 * 256; }
  static constexpr int64_t row_bytes(int64_t K) { return padded(K) + padded(K) / 32 * 4 * record; }
};

// Outputs of a tile of matmul_rows.cu for one row, where a warp makes two: of gated ones, tiles go through both parts.
constexpr int kRowTile = 2 * kMatmulThreads / kLanes;
constexpr int kRowStageBytes = 2048;  // of each of two rows, in a stage of the ring of a warp

// ---- host code ----

constexpr RowSource no_source() {
  return {nullptr, nullptr, nullptr, -1, 0, nullptr, nullptr, {nullptr, nullptr, -1, nullptr, nullptr}};
}

// The first of the calls, and those after it that meet the same x, which is there; of a type that goes with it too, or
// not.
MatmulArgs join_matmuls(const luce_call *calls, int n_calls, bool has_pairs);
// The same for one row, as a block's shared memory has room for.
MatmulArgs join_row(const luce_call *calls, int n_calls, const Launcher &launcher);

// Whether there is one row, and the kernel for it can run here.
bool fits_one_row(const luce_matmul_args &a, const Launcher &launcher);
// Matrices that meet one row, after the ops that make it, and what meets a gate after them: how many of the calls are
// one launch. 0: the calls do not begin so.
int plan_sourced(const luce_call *calls, int n_calls, const Launcher &launcher, MatmulArgs &to);
// Takes on a glu of the two parts, and its quantisation where the weights are quantised: how many of the calls after
// the matmuls these are. What a block writes then nobody may still read, and where it goes nobody wants what was there.
int add_gate(MatmulArgs &to, const luce_call *matmuls, int n_calls);
void launch_matmul(const MatmulArgs &all, Launcher &launcher);

// Of float weights: whether x is one row, and read 16 bytes at a time as the weight's rows are; the kernel for that;
// and the launch for anything else.
bool is_one_wide_row(const luce_matmul_args &a);
int row_kernel(int32_t type);
void launch_matmul_rows(const luce_matmul_args &a, Launcher &launcher);

}  // namespace luce
