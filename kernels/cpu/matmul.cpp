// matmul.cpp: out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i], weight [K, N], x [K, n], out [N, n].
//
// Quantised weights are packed in tiles of 16 rows and meet Q8_A; F32, F16 and BF16 lie in rows and meet F32.
// The threads share the rows of the weight; each output is the work of one thread, in one order over K. One token
// (decode) streams each weight once. Many (prefill) come in blocks that stay in the second-level cache, and each tile
// of weights meets all tokens of a block, a few at a time, while it is in the first.

#include <algorithm>

#include "kernel.h"
#include "matmul_packed.h"
#include "matmul_rows.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kTokenBytes = 512 << 10;           // of a block of tokens
constexpr int kPackedTokens = kLanes == 16 ? 8 : 4;  // a kernel call takes at most so many: what the registers hold
constexpr int kRowsTokens = kLanes == 16 ? 4 : 2;
constexpr int kRows = 4;
// The panels of one call, at most 44 bytes for each 32 values of a token, lie in a thread's scratch.
constexpr int64_t kMaxK = 65536;
static_assert(kPackedTokens * kMaxK / 32 * 44 <= kScratchBytes && kTokenBytes <= kScratchBytes);

// Cuts [begin, end) into pieces of M, and what is left into pieces of M / 2 and so on; visit<size>(begin of a piece).
template <int M, class Visit>
LUCE_INLINE void in_pieces(int64_t begin, int64_t end, Visit visit) {
  for (; end - begin >= M; begin += M) visit.template operator()<M>(begin);
  if constexpr (M > 1) in_pieces<M / 2>(begin, end, visit);
}

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
        const int64_t j = tile * kTileRows + lane, width = std::min<int64_t>(kLanes, N - j);
        const bool whole = width == kLanes;
        auto part = [&](const float *p) { return whole ? load<F32>(p + j) : load_first<F32>(p + j, width); };
        const F32 bias = a.bias.data ? part(static_cast<const float *>(a.bias.data)) : F32{};
        in_pieces<kPackedTokens>(0, count, [&]<int M>(int64_t t) __attribute__((always_inline)) {
          F32 sums[M];
          multiply_packed<f, M>(weight, lane, panels + t * per_token, K, sums);
          for (int i = 0; i < M; ++i) {
            F32 y = sums[i];
            if (a.bias.data) y += bias;
            if (a.add.data) y += part(row<const float>(a.add, first + t + i));
            float *out = row<float>(a.out, first + t + i) + j;
            whole ? store(out, y) : store_first(out, y, width);
          }
        });
      }
    }
  }
}

template <class Weight>
void run_rows(const luce_matmul_args &a, const Worker &worker) {
  const int64_t K = a.weight.ne[0], N = a.weight.ne[1], n = true_rows(a.n_rows, a.x.ne[1]);
  const Range groups = share((N + kRows - 1) / kRows, worker);
  const Range rows = {groups.begin * kRows, std::min(groups.end * kRows, N)};
  const int64_t block = std::max<int64_t>(kTokenBytes / (4 * K) / kRowsTokens, 1) * kRowsTokens;
  const float *bias = static_cast<const float *>(a.bias.data);
  for (int64_t first = 0; first < n; first += block) {
    in_pieces<kRows>(rows.begin, rows.end, [&]<int R>(int64_t j) __attribute__((always_inline)) {
      in_pieces<kRowsTokens>(first, std::min(first + block, n), [&]<int M>(int64_t i) __attribute__((always_inline)) {
        float sums[R * M];
        multiply_rows<Weight, R, M>(row<const char>(a.weight, j), a.weight.nb[1], row<const char>(a.x, i), a.x.nb[1], K,
                                    sums);
        for (int r = 0; r < R; ++r) {
          for (int t = 0; t < M; ++t) {
            float y = sums[r * M + t];
            if (bias) y += bias[j + r];
            if (a.add.data) y += row<const float>(a.add, i + t)[j + r];
            row<float>(a.out, i + t)[j + r] = y;
          }
        }
      });
    });
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
  if (a.weight.type == LUCE_F32 || a.weight.type == LUCE_F16 || a.weight.type == LUCE_BF16) {
    if (a.weight.layout != LUCE_ROWS) return bad("F32, F16 and BF16 weights are never packed");
    if (a.weight.nb[0] != (a.weight.type == LUCE_F32 ? 4 : 2)) return unsupported("rows of the weight are contiguous");
    if (a.x.type != LUCE_F32 || a.x.nb[0] != 4) return unsupported("such a weight meets F32 rows");
    return {};
  }
  Verdict verdict = unsupported("weight is of no weight type");
  with_block(a.weight.type, [&](auto block_of) {
    verdict = K % decltype(block_of)::format.values == 0 ? Verdict{} : bad("a row of the weight is not whole blocks");
  });
  if (verdict.status != LUCE_OK) return verdict;
  if (a.weight.layout != LUCE_PACKED) return unsupported("a quantised weight is packed first, by luce_pack");
  if (a.x.type != LUCE_Q8_A) return unsupported("a quantised weight meets Q8_A");
  return {};
}

void run(const luce_matmul_args &a, const Worker &worker) {
  switch (a.weight.type) {
    case LUCE_F32:
      return run_rows<WeightF32>(a, worker);
    case LUCE_F16:
      return run_rows<WeightF16>(a, worker);
    case LUCE_BF16:
      return run_rows<WeightBF16>(a, worker);
    default:
      with_block(a.weight.type, [&](auto block_of) { run_packed<decltype(block_of)>(a, worker); });
  }
}

}  // namespace

LUCE_KERNEL(matmul, check, run)

}  // namespace luce::LUCE_ISA
