// attention_pages.cu: attention for the shapes that models have: pages of 32 cells in F16 or BF16, keys and values of
// 64, 128 or 256, up to eight heads to a KV head. What else there is, attention.cu does.
//
// A block takes a split, of rounds of eight pages, a warp a page: all pages of a round are under way at once. Keys come
// through shared memory, in whole lines; a lane has a cell while scores are made, so that a softmax is over lanes and
// nothing else passes between them, and D / 32 values of the output while values are added. The pages are joined in
// order, then the rounds, then the splits.

#include <type_traits>

#include "attention_join.cuh"

namespace luce {
namespace {

constexpr int kWarps = kSplitCells / kLanes;  // and pages of a round
constexpr int64_t kStaticBytes = 24 << 10;    // of shared memory, beside what is asked for

// Of a page's keys in shared memory: cells lie 16 bytes apart, so that lanes meet no other's bank.
constexpr int key_bytes(int D) {
  return 2 * D + 16;
}
constexpr int page_bytes(int D) {
  return kLanes * key_bytes(D);
}

template <class Pair, int D, int G>
LUCE_DEVICE void attend(const AttentionArgs &a, uint32_t *fault) {
  constexpr int kOwn = D / kLanes, kPieces = D / 8;                             // 16 bytes of a key
  constexpr int kValues = (G * D + kAttentionThreads - 1) / kAttentionThreads;  // of the output, of each thread
  constexpr int kAtOnce = D == 256 ? 8 : 16;                                    // cells whose values are under way
  using Value = std::conditional_t<kOwn == 2, uint32_t, std::conditional_t<kOwn == 4, uint2, uint4>>;
  static_assert(G * D * 4 <= page_bytes(D), "a page's output takes the place of its keys");
  __shared__ float q[G][D], weights[kWarps][kLanes][G], tops[kWarps][G], totals[kWarps][G];
  extern __shared__ uint4 memory[];  // of each warp: keys of its page, then G * D values of its output
  begin();
  const int h = blockIdx.y, i = a.first_row + blockIdx.z, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Viewer viewer(a, i);
  for (int u = threadIdx.x; u < G * D; u += kAttentionThreads) {
    q[u / D][u % D] = a.q_of(h * G + u / D, i)[u % D];
  }
  if (!viewer.is_there()) return;
  const int last = viewer.last_cell(fault);
  if (last < 0) return put_nothing(a, i, h);
  const int n_pages = last / kLanes + 1, n_rounds = (n_pages + kWarps - 1) / kWarps,
            log_rounds = log_rounds_of(n_rounds), n_own = ((n_rounds - 1) >> log_rounds) + 1;
  if (static_cast<int>(blockIdx.x) >= n_own) return;
  uint8_t *const keys = reinterpret_cast<uint8_t *>(memory) + warp * page_bytes(D);
  const auto out_of = [&](int w) {
    return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(memory) + w * page_bytes(D));
  };

  for (int split = blockIdx.x; split < n_own; split += gridDim.x) {
    Joined joined[kValues];
#pragma unroll 1
    for (int round = split << log_rounds; round < min((split + 1) << log_rounds, n_rounds); ++round) {
      __syncthreads();
      const int j = round * kWarps + warp, page = j < n_pages ? viewer.page(j, fault) : -1;
      if (page >= 0) {
#pragma unroll
        for (int u = lane; u < kLanes * kPieces; u += kLanes) {
          const int c = u / kPieces, piece = u % kPieces * 16;
          copy_async(keys + c * key_bytes(D) + piece, a.key(c, h, page) + piece);
        }
#pragma unroll
        for (int line = 0; line < 2 * D; line += kLineBytes) prefetch(a.value(lane, h, page) + line);
      }
      commit_copies();
      const bool seen = page >= 0 && viewer.sees(j * kLanes + lane, a.position_of(lane, page), fault);
      const unsigned any = __ballot_sync(kAllLanes, seen);
      const uint8_t *const first_value = a.value(0, h, max(page, 0)) + 2 * kOwn * lane;
      Value values[kAtOnce];
      const auto read_values = [&](int begin) {
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
          values[c] =
              any >> (begin + c) & 1 ? *reinterpret_cast<const Value *>(first_value + (begin + c) * a.v_cell) : Value{};
        }
      };
      read_values(0);
      wait_for_copies<0>();
      __syncwarp();
      float o[G][kOwn] = {};
      if (any == 0) {
        if (lane == 0) {
          for (int g = 0; g < G; ++g) tops[warp][g] = -INFINITY, totals[warp][g] = 0;
        }
      } else {
        float s[G] = {};
#pragma unroll 4
        for (int d = 0; d < D; d += 8) {
          float x[8];
          load_values<Pair>(keys + lane * key_bytes(D) + 2 * d, x);
#pragma unroll
          for (int g = 0; g < G; ++g) {
#pragma unroll
            for (int c = 0; c < 8; ++c) s[g] = fmaf(q[g][d + c], x[c], s[g]);
          }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
          // A cell that is not seen may hold anything.
          const float x = seen ? logit_of(s[g], a.scale, a.softcap) : -INFINITY, top = largest_of_warp(x);
          const float weight = seen ? expf(x - top) : 0.0f, total = sum_of_warp(weight);
          weights[warp][lane][g] = weight;
          if (lane == 0) tops[warp][g] = top, totals[warp][g] = total;
        }
        __syncwarp();
#pragma unroll 1
        for (int begin = 0; begin < kLanes; begin += kAtOnce) {
          if (begin > 0) read_values(begin);
#pragma unroll
          for (int c = 0; c < kAtOnce; ++c) {
            float v[kOwn];
            values_of<Pair>(values[c], v);
#pragma unroll
            for (int g = 0; g < G; ++g) {
              const float weight = weights[warp][begin + c][g];
#pragma unroll
              for (int e = 0; e < kOwn; ++e) o[g][e] = fmaf(weight, v[e], o[g][e]);
            }
          }
        }
      }
      __syncwarp();
#pragma unroll
      for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int e = 0; e < kOwn; ++e) out_of(warp)[g * D + kOwn * lane + e] = o[g][e];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        const int u = threadIdx.x + k * kAttentionThreads, g = u / D;
        if (u >= G * D) break;
        float most = tops[0][g];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) most = fmaxf(most, tops[w][g]);
        float total = 0, y = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float share = share_of(tops[w][g], totals[w][g], most);
          total = fmaf(totals[w][g], share, total);
          y = fmaf(out_of(w)[u], share, y);
        }
        joined[k].add(most, total, y);
      }
    }
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      const int u = threadIdx.x + k * kAttentionThreads, g = u / D, d = u % D;
      if (u >= G * D) break;
      const Joined &own = joined[k];
      if (n_own == 1) {  // with one split there is nothing to join
        a.out_of(h * G + g, i)[d] = own.y * last_factor(a, h * G + g, own.most, own.total);
        continue;
      }
      float *to = partial_of(a, i, h * G + g, split);
      if (d == 0) *reinterpret_cast<float4 *>(to) = {own.most, own.total, 0, 0};
      to[kPartialValues + d] = own.y;
    }
  }
  if (n_own > 1) join_splits<D, G, D == 64 ? 2 : 4>(a, i, h, n_own, memory);
}

}  // namespace

#define LUCE_ATTEND(name, Pair, D, G)                                                                   \
  LUCE_GLOBAL(attention_##name##_##D##_##G)(const __grid_constant__ AttentionArgs a, uint32_t *fault) { \
    attend<Pair, D, G>(a, fault);                                                                       \
  }
LUCE_ATTENTION_FORMS(LUCE_ATTEND)

PagesKernel pages_kernel(const luce_attention_args &a, int64_t most_shared) {
  const int64_t D = a.q.ne[0], G = a.q.ne[1] / a.k_pages.ne[2];
  const auto is_aligned = [](const luce_tensor &t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.nb[1] % 16 == 0 && t.nb[2] % 16 == 0 && t.nb[3] % 16 == 0;
  };
  if (a.cell_pos.ne[0] != kLanes || a.v_pages.ne[0] != D || a.k_pages.type != a.v_pages.type) return {-1, 0};
  if ((a.k_pages.type != LUCE_F16 && a.k_pages.type != LUCE_BF16) || !is_aligned(a.k_pages) || !is_aligned(a.v_pages) ||
      !is_aligned(a.workspace)) {
    return {-1, 0};
  }
  const int size = D == 64 ? 0 : D == 128 ? 1 : D == 256 ? 2 : -1;
  const int heads = G >= 1 && G <= 4 ? static_cast<int>(G) - 1 : G == 8 ? 4 : -1;
  if (size < 0 || heads < 0) return {-1, 0};
  const int64_t bytes = kWarps * page_bytes(static_cast<int>(D));
  if (bytes + kStaticBytes > most_shared) return {-1, 0};
  const int first = a.k_pages.type == LUCE_F16 ? kernel_attention_f16_64_1 : kernel_attention_bf16_64_1;
  return {first + 5 * size + heads, bytes};
}

}  // namespace luce
