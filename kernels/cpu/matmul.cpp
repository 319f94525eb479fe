// matmul.cpp: out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i], weight [K, N], x [K, n], out [N, n].
//
// Weights are packed in tiles of 16 rows. Quantised ones meet Q8_A; F32, F16 and BF16 meet F32.
// The threads share the rows of the weight; each output is the work of one thread, in one order over K. One token
// (decode) streams each weight once. Many (prefill) come in blocks that stay in the second-level cache, and each tile
// of weights meets all tokens of a block, a few at a time, while it is in the first.

#include <algorithm>

#include "kernel.h"
#include "matmul_floats.h"
#include "matmul_packed.h"
#include "pieces.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kTokenBytes = 512 << 10;           // of a block of tokens
constexpr int kPackedTokens = kLanes == 16 ? 8 : 4;  // a kernel call takes at most so many: what the registers hold
constexpr int kFloatTokens = kLanes == 16 ? 12 : 6;  // with two vectors of rows
constexpr int64_t kChunk = 2048;  // values of k a multiple of a chain: there a sum of floats may rest
// The panels of one call, at most 44 bytes for each 32 values of a token, lie in a thread's scratch.
constexpr int64_t kMaxK = 65536;
static_assert(kPackedTokens * kMaxK / 32 * 44 <= kScratchBytes && kTokenBytes <= kScratchBytes);

// Where the sums of kLanes rows of the weight go, from row j on: fewer at the end of the weight.
class Columns {
 public:
  Columns(const luce_matmul_args &a, int64_t j)
      : a_(a), j_(j), n_(std::min<int64_t>(kLanes, a.weight.ne[1] - j)), bias_(part(a.bias.data)) {}

  void store(int64_t i, F32 sum) const {
    if (a_.bias.data) sum += bias_;
    if (a_.add.data) sum += part(row<const float>(a_.add, i));
    store_part(i, sum);
  }
  // A sum that is not whole yet lies where it will go.
  void store_part(int64_t i, F32 sum) const {
    float *to = row<float>(a_.out, i) + j_;
    n_ == kLanes ? LUCE_ISA::store(to, sum) : store_first(to, sum, n_);
  }
  F32 load_part(int64_t i) const { return part(row<const float>(a_.out, i)); }

 private:
  F32 part(const void *values) const {
    if (values == nullptr) return F32{};
    const float *from = static_cast<const float *>(values) + j_;
    return n_ == kLanes ? load<F32>(from) : load_first<F32>(from, n_);
  }

  const luce_matmul_args &a_;
  const int64_t j_, n_;
  const F32 bias_;
};

template <class BlockOf>
void run_packed(const luce_matmul_args &a, const Worker &worker) {
  constexpr Format f = BlockOf::format;
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], n = true_rows(a.n_rows, a.x.ne[1]);
  const Range tiles = share((N + kTileRows - 1) / kTileRows, worker);
  const int64_t per_token = panel_bytes(f, K);
  const int64_t block = std::max<int64_t>(kTokenBytes / per_token / kPackedTokens, 1) * kPackedTokens;
  uint8_t *panels = static_cast<uint8_t *>(worker.scratch);
  for (int64_t first = 0; first < n && tiles.begin < tiles.end; first += block) {
    const int64_t count = std::min(block, n - first);
    in_pieces<kPackedTokens>(0, count, [&]<int M>(int64_t t) {
      fill_panel<f, M>(row<const char>(a.x, first + t), a.x.nb[1], K, panels + t * per_token);
    });
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const uint8_t *weight = static_cast<const uint8_t *>(a.weight.data) + tile * tile_bytes(f, K);
      for (int lane = 0; lane < kTileRows && tile * kTileRows + lane < N; lane += kLanes) {
        const Columns columns(a, tile * kTileRows + lane);
        in_pieces<kPackedTokens>(0, count, [&]<int M>(int64_t t) __attribute__((always_inline)) {
          F32 sums[M];
          multiply_packed<f, M>(weight, lane, panels + t * per_token, K, sums);
          for (int i = 0; i < M; ++i) columns.store(first + t + i, sums[i]);
        });
      }
    }
  }
}

// One chunk of K, which begins at k: R vectors of rows from the v-th on times the M tokens of a panel.
template <int type, int R, int M>
LUCE_INLINE void multiply_chunk(const luce_matmul_args &a, int64_t v, int64_t i, Range k, const float *panel) {
  constexpr int kVectors = kTileRows / kLanes;  // in a tile
  const int64_t K = a.weight.ne[0];
  const uint8_t *tiles[R];
  int lanes[R];
  for (int r = 0; r < R; ++r) {
    const int64_t tile = (v + r) / kVectors * float_tile_bytes(type, K);
    tiles[r] = static_cast<const uint8_t *>(a.weight.data) + tile + k.begin * float_bytes(type) * kTileRows;
    lanes[r] = (v + r) % kVectors * kLanes;
  }
  F32 sums[R][M] = {};
  for (int r = 0; r < R && k.begin > 0; ++r) {
    const Columns columns(a, (v + r) * kLanes);
    for (int t = 0; t < M; ++t) sums[r][t] = columns.load_part(i + t);
  }
  multiply_floats<type, R, M>(tiles, lanes, panel, (k.end - k.begin + 1) / 2, sums);
  for (int r = 0; r < R; ++r) {
    const Columns columns(a, (v + r) * kLanes);
    for (int t = 0; t < M; ++t) {
      k.end == K ? columns.store(i + t, sums[r][t]) : columns.store_part(i + t, sums[r][t]);
    }
  }
}

template <int type>
void run_floats(const luce_matmul_args &a, const Worker &worker) {
  constexpr int kVectors = kTileRows / kLanes;
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], n = true_rows(a.n_rows, a.x.ne[1]);
  const Range tiles = share((N + kTileRows - 1) / kTileRows, worker);
  const Range vectors = {tiles.begin * kVectors, std::min(tiles.end * kVectors, (N + kLanes - 1) / kLanes)};
  const int64_t chunk = a.add.data == a.out.data ? kMaxK : kChunk;  // parts of sums would overwrite what is added
  const int64_t per_token = std::min(chunk, (K + 1) / 2 * 2);       // floats
  const int64_t most = kScratchBytes / static_cast<int64_t>(sizeof(float)) / per_token;
  const int64_t block = most >= kFloatTokens ? most / kFloatTokens * kFloatTokens : most;
  float *panels = static_cast<float *>(worker.scratch);
  for (int64_t first = 0; first < n && tiles.begin < tiles.end; first += block) {
    const int64_t count = std::min(block, n - first);
    for (Range k = {0, std::min(chunk, K)}; k.begin < K; k = {k.end, std::min(k.end + chunk, K)}) {
      in_pieces<kFloatTokens>(0, count, [&]<int M>(int64_t t) {
        const char *x = row<const char>(a.x, first + t) + k.begin * sizeof(float);
        fill_float_panel<M>(x, a.x.nb[1], k.end - k.begin, (k.end - k.begin + 1) / 2, panels + t * per_token);
      });
      if (count == 1) {
        in_pieces<4>(vectors.begin, vectors.end, [&]<int R>(int64_t v) __attribute__((always_inline)) {
          multiply_chunk<type, R, 1>(a, v, first, k, panels);
        });
        continue;
      }
      in_pieces<2>(vectors.begin, vectors.end, [&]<int R>(int64_t v) __attribute__((always_inline)) {
        in_pieces<kFloatTokens>(0, count, [&]<int M>(int64_t t) __attribute__((always_inline)) {
          multiply_chunk<type, R, M>(a, v, first + t, k, panels + t * per_token);
        });
      });
    }
  }
}

bool is_rows_of(const luce_tensor &t, int64_t width, int64_t n) {
  return t.type == LUCE_F32 && t.nb[0] == 4 && t.ne[0] == width && t.ne[1] == n;
}

Verdict check(const luce_matmul_args &a) {
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], n = a.x.ne[1];
  if (a.x.ne[0] != K) return bad("x is [K, n] for weight [K, N]");
  if (!is_rows_of(a.out, N, n)) return bad("out is F32 [N, n], its rows contiguous");
  if (a.bias.data && (a.bias.type != LUCE_F32 || a.bias.nb[0] != 4 || a.bias.ne[0] != N)) return bad("bias is F32 [N]");
  if (a.add.data && !is_rows_of(a.add, N, n)) return bad("add is F32 [N, n], its rows contiguous");
  if (K > kMaxK) return unsupported("K is at most 65536");
  if (a.weight.layout != LUCE_PACKED) return unsupported("a weight is packed first, by luce_pack");
  if (is_float(a.weight.type)) {
    if (a.x.type != LUCE_F32 || a.x.nb[0] != 4) return unsupported("such a weight meets F32 rows");
    return {};
  }
  Verdict verdict = unsupported("weight is of no weight type");
  with_block(a.weight.type, [&](auto block_of) {
    verdict = K % decltype(block_of)::format.values == 0 ? Verdict{} : bad("a row of the weight is not whole blocks");
  });
  if (verdict.status != LUCE_OK) return verdict;
  if (a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  return {};
}

void run(const luce_matmul_args &a, const Worker &worker) {
  switch (a.weight.type) {
    case LUCE_F32:
      return run_floats<LUCE_F32>(a, worker);
    case LUCE_F16:
      return run_floats<LUCE_F16>(a, worker);
    case LUCE_BF16:
      return run_floats<LUCE_BF16>(a, worker);
    default:
      with_block(a.weight.type, [&](auto block_of) { run_packed<decltype(block_of)>(a, worker); });
  }
}

}  // namespace

LUCE_KERNEL(matmul, check, run)

}  // namespace luce::LUCE_ISA
