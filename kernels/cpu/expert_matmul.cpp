// expert_matmul.cpp: out[j, e, i] = scale[x] * sum_k weight[k, j, x] * x[k, e, i], x = ids[e, i].
//
// The (row, expert) pairs are sorted by expert; each thread does that for itself, which is less than to wait for one.
// The threads share the tiles of the experts that somebody needs, by what each costs: reading it, and meeting its rows.
// A tile is read once for each block of rows that fit in a thread's scratch, which is every row but in long prefills.

#include <algorithm>

#include "expert_tile.h"
#include "kernel.h"
#include "matmul_rows.h"
#include "pieces.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kReadCost = 4;  // of a tile, in rows that meet it
constexpr int64_t kTokenBytes = 512 << 10;
constexpr int kQuantTokens = kLanes == 16 ? 8 : 4;
constexpr int kRowsTokens = kLanes == 16 ? 4 : 2;
constexpr int kRows = 4;
constexpr int64_t kMaxK = 65536;
constexpr int64_t kMaxTokens = kTokenBytes / (2 * sizeof(float) * kTileRows);  // whose sums fit beside their panels
static_assert(kQuantTokens * kMaxK / 32 * 44 <= kScratchBytes - kTokenBytes / 2 - 16384);

// One thread's list of pairs e + k * i, by expert: those of expert x are pairs[begin[x]] to pairs[begin[x + 1]].
struct Pairs {
  int32_t *begin, *pairs;

  static int64_t bytes(const luce_expert_matmul_args &a) {
    return (4 * (a.weight.ne[2] + 1 + a.ids.ne[0] * a.ids.ne[1]) + 63) / 64 * 64;
  }

  Pairs(const luce_expert_matmul_args &a, const Worker &worker) {
    const int64_t n_expert = a.weight.ne[2], k = a.ids.ne[0], n = true_rows(a.n_rows, a.ids.ne[1]);
    begin = reinterpret_cast<int32_t *>(static_cast<char *>(a.workspace.data) + worker.index * bytes(a));
    pairs = begin + n_expert + 1;
    std::fill_n(begin, n_expert + 1, 0);
    auto each = [&](auto visit) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = 0; e < k; ++e) {
          const int32_t x = row<const int32_t>(a.ids, i)[e];
          if (x >= 0 && x < n_expert) visit(x, i * k + e);
        }
      }
    };
    each([&](int32_t x, int64_t) { ++begin[x + 1]; });
    for (int64_t x = 0; x < n_expert; ++x) begin[x + 1] += begin[x];
    each([&](int32_t x, int64_t pair) { pairs[begin[x]++] = static_cast<int32_t>(pair); });
    for (int64_t x = n_expert; x > 0; --x) begin[x] = begin[x - 1];
    begin[0] = 0;
  }

  int64_t count(int64_t x) const { return begin[x + 1] - begin[x]; }
};

// What a pair reads and writes.
struct Pair {
  const luce_expert_matmul_args &a;
  int64_t i, e;

  Pair(const luce_expert_matmul_args &a, int64_t pair) : a(a), i(pair / a.ids.ne[0]), e(pair % a.ids.ne[0]) {}

  int64_t input() const { return a.x.ne[0] == a.weight.ne[0] ? 0 : e * a.weight.ne[0]; }  // first value within its row
  float *out() const { return row<float>(a.out, i) + e * a.weight.ne[1]; }
};

float scale_of(const luce_expert_matmul_args &a, int64_t expert) {
  return a.scale.data ? static_cast<const float *>(a.scale.data)[expert] : 1;
}

// visit(expert, its tiles) for this thread's share of the tiles that are needed.
template <class Visit>
void share_tiles(const luce_expert_matmul_args &a, const Pairs &pairs, const Worker &worker, Visit visit) {
  const int64_t n_tiles = (a.weight.ne[1] + kTileRows - 1) / kTileRows;
  auto cost = [&](int64_t x) { return pairs.count(x) ? pairs.count(x) + kReadCost : 0; };
  int64_t total = 0;
  for (int64_t x = 0; x < a.weight.ne[2]; ++x) total += n_tiles * cost(x);
  const Range mine = share(total, worker);
  int64_t at = 0;  // what the experts before this one cost
  for (int64_t x = 0; x < a.weight.ne[2] && at < mine.end; at += n_tiles * cost(x), ++x) {
    if (cost(x) == 0) continue;
    // A tile is whose share its first cost falls into.
    auto tile_at = [&](int64_t c) { return std::clamp<int64_t>((c - at + cost(x) - 1) / cost(x), 0, n_tiles); };
    const Range tiles = {mine.begin <= at ? 0 : tile_at(mine.begin), mine.end <= at ? 0 : tile_at(mine.end)};
    if (tiles.begin < tiles.end) visit(x, tiles);
  }
}

template <class BlockOf>
void multiply_quantised(const luce_expert_matmul_args &a, const Pairs &pairs, int64_t expert, Range tiles,
                        const Worker &worker) {
  constexpr Format f = BlockOf::format;
  struct Scratch {
    RowPieces rows;
    TilePiece piece;
    float sums[kMaxTokens][kTileRows];
    uint8_t panels[];
  };
  Scratch &scratch = *static_cast<Scratch *>(worker.scratch);
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], per_token = panel_bytes(f, K);
  const int64_t block =
      std::clamp<int64_t>(kTokenBytes / per_token / kQuantTokens * kQuantTokens, kQuantTokens, kMaxTokens);
  const float scale = scale_of(a, expert);
  for (int64_t first = 0; first < pairs.count(expert); first += block) {
    const int32_t *some = pairs.pairs + pairs.begin[expert] + first;
    const int64_t count = std::min(block, pairs.count(expert) - first);
    in_pieces<kQuantTokens>(0, count, [&]<int M>(int64_t t) {
      Q8Values tokens[M];
      for (int m = 0; m < M; ++m) {
        const Pair pair(a, some[t + m]);
        tokens[m] = q8_values(row<const char>(a.x, pair.i), a.x.ne[0], pair.input());
      }
      fill_panel<f, M>(tokens, K, scratch.panels + t * per_token);
    });
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const int64_t n_rows = std::min<int64_t>(kTileRows, N - tile * kTileRows);
      const uint8_t *weight = row<const uint8_t>(a.weight, tile * kTileRows, expert);
      std::memset(scratch.sums, 0, count * sizeof scratch.sums[0]);
      for (int64_t k = 0; k < K; k += kPiece) {
        const int n = std::min<int64_t>(kPiece, K - k);
        read_piece<BlockOf>(weight + k / f.values * f.bytes, a.weight.nb[1], n_rows, n, scratch.rows, scratch.piece);
        for (int lane = 0; lane < kTileRows; lane += kLanes) {
          in_pieces<kQuantTokens>(0, count, [&]<int M>(int64_t t) __attribute__((always_inline)) {
            F32 sums[M];
            for (int m = 0; m < M; ++m) sums[m] = load<F32>(scratch.sums[t + m] + lane);
            multiply_piece<f, M>(scratch.piece, lane, n,
                                 scratch.panels + t * per_token + M * (k / 32) * panel_block_bytes(f), sums);
            for (int m = 0; m < M; ++m) store(scratch.sums[t + m] + lane, sums[m]);
          });
        }
      }
      for (int64_t t = 0; t < count; ++t) {
        float *out = Pair(a, some[t]).out() + tile * kTileRows;
        for (int64_t j = 0; j < n_rows; ++j) out[j] = scale * scratch.sums[t][j];
      }
    }
  }
}

template <class Weight>
void multiply_floats(const luce_expert_matmul_args &a, const Pairs &pairs, int64_t expert, Range tiles,
                     const Worker &worker) {
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1];
  const int64_t block = std::max<int64_t>(kTokenBytes / (4 * K) / kRowsTokens, 1) * kRowsTokens;
  const Range rows = {tiles.begin * kTileRows, std::min(tiles.end * kTileRows, N)};
  const float scale = scale_of(a, expert);
  float *tokens = static_cast<float *>(worker.scratch);  // those of this expert, side by side
  for (int64_t first = 0; first < pairs.count(expert); first += block) {
    const int32_t *some = pairs.pairs + pairs.begin[expert] + first;
    const int64_t count = std::min(block, pairs.count(expert) - first);
    for (int64_t t = 0; t < count; ++t) {
      const Pair pair(a, some[t]);
      std::copy_n(row<const float>(a.x, pair.i) + pair.input(), K, tokens + t * K);
    }
    in_pieces<kRows>(rows.begin, rows.end, [&]<int R>(int64_t j) __attribute__((always_inline)) {
      in_pieces<kRowsTokens>(0, count, [&]<int M>(int64_t t) __attribute__((always_inline)) {
        float sums[R * M];
        multiply_rows<Weight, R, M>(row<const char>(a.weight, j, expert), a.weight.nb[1],
                                    reinterpret_cast<const char *>(tokens + t * K), K * sizeof(float), K, sums);
        for (int m = 0; m < M; ++m) {
          float *out = Pair(a, some[t + m]).out() + j;
          for (int r = 0; r < R; ++r) out[r] = scale * sums[r * M + m];
        }
      });
    });
  }
}

Verdict check(const luce_expert_matmul_args &a) {
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], k = a.ids.ne[0], n = a.ids.ne[1];
  if (a.weight.layout != LUCE_ROWS) return unsupported("experts are read in LUCE_ROWS");
  if (!is_i32(a.ids)) return unsupported("ids are I32 [k, n]");
  if (a.x.ne[1] != n || (a.x.ne[0] != K && a.x.ne[0] != K * k)) return bad("x is [K, n] or [K * k, n]");
  if (!is_f32(a.out) || a.out.ne[0] != N * k || a.out.ne[1] != n) return bad("out is F32 [N * k, n]");
  if (a.scale.data && (!is_f32(a.scale) || a.scale.ne[0] != a.weight.ne[2])) return bad("scale is F32 [n_expert]");
  if (K > kMaxK) return unsupported("K is at most 65536");
  if (a.weight.type == LUCE_F32 || a.weight.type == LUCE_F16 || a.weight.type == LUCE_BF16) {
    if (a.weight.nb[0] != (a.weight.type == LUCE_F32 ? 4 : 2)) return unsupported("rows of the weight are contiguous");
    return is_f32(a.x) ? Verdict{} : unsupported("such a weight meets F32 rows");
  }
  Verdict verdict = unsupported("weight is of no weight type");
  with_block(a.weight.type, [&](auto block_of) {
    verdict = K % decltype(block_of)::format.values == 0 ? Verdict{} : bad("a row of the weight is not whole blocks");
  });
  if (verdict.status == LUCE_OK && a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  return verdict;
}

int64_t workspace(const luce_expert_matmul_args &a, int n_threads) {
  return n_threads * Pairs::bytes(a);
}

// What has no expert is 0.
void clear_strays(const luce_expert_matmul_args &a, const Worker &worker) {
  const Range mine = share(true_rows(a.n_rows, a.ids.ne[1]), worker);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    for (int64_t e = 0; e < a.ids.ne[0]; ++e) {
      const int32_t x = row<const int32_t>(a.ids, i)[e];
      if (x >= 0 && x < a.weight.ne[2]) continue;
      worker.fault(LUCE_FAULT_ROW);
      std::fill_n(Pair(a, i * a.ids.ne[0] + e).out(), a.weight.ne[1], 0.0f);
    }
  }
}

void run(const luce_expert_matmul_args &a, const Worker &worker) {
  clear_strays(a, worker);
  const Pairs pairs(a, worker);
  share_tiles(a, pairs, worker, [&](int64_t expert, Range tiles) {
    switch (a.weight.type) {
      case LUCE_F32:
        return multiply_floats<WeightF32>(a, pairs, expert, tiles, worker);
      case LUCE_F16:
        return multiply_floats<WeightF16>(a, pairs, expert, tiles, worker);
      case LUCE_BF16:
        return multiply_floats<WeightBF16>(a, pairs, expert, tiles, worker);
      default:
        with_block(a.weight.type,
                   [&](auto block_of) { multiply_quantised<decltype(block_of)>(a, pairs, expert, tiles, worker); });
    }
  });
}

}  // namespace

LUCE_KERNEL(expert_matmul, check, run, workspace)

}  // namespace luce::LUCE_ISA
