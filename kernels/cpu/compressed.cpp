// compressed.cpp: attention over cells that stand for several tokens each: how such a cell is made (compress), which of
// them a row looks at (select), and how what it saw there joins what it saw among its last tokens (merge).
//
// A row of select is scored by all threads, page by page, and picked from by one: at decode there is one row and a long
// context. A score is one chain over heads, whose dot products are those of attention.

#include <functional>

#include "attention_page.h"
#include "attention_rows.h"
#include "kernel.h"

namespace luce::LUCE_ISA {
namespace {

constexpr float kLeast = -__builtin_inff();

// The page of cell c of sequence s; -1, and a fault, where there is none.
int64_t page_of(const luce_tensor &table, const luce_tensor &pages, int64_t s, int64_t c, const Worker &worker) {
  const int64_t j = c / pages.ne[1];
  const int64_t page = c >= 0 && j < table.ne[0] ? row<const int32_t>(table, s)[j] : -1;
  if (page >= 0 && page < pages.ne[3]) return page;
  worker.fault(LUCE_FAULT_PAGE);
  return -1;
}

bool is_sequence(const luce_tensor &table, int64_t s, const Worker &worker) {
  if (s >= 0 && s < table.ne[1]) return true;
  worker.fault(LUCE_FAULT_ROW);
  return false;
}

// ---- compress ----

constexpr int64_t kMaxRatio = 1024;
constexpr int64_t kChannels = 64;  // of an entry that one thread makes

// One token's part: a vector, its scores, and what is added to them.
struct Part {
  const float *value, *score, *bias;
};
static_assert(2 * kMaxRatio * sizeof(Part) <= kScratchBytes);

// The tokens of entry j; none, where a page is missing.
int64_t gather(const luce_compress_args &a, int64_t j, Part *parts, const Worker &worker) {
  const int64_t W = a.values.ne[0], D = a.out.ne[0], ratio = a.bias.ne[1], page_size = a.values.ne[1];
  const int64_t s = list<int32_t>(a.entry_seq)[j], end = list<int32_t>(a.last)[j] + int64_t{1};
  if (!is_sequence(a.page_table, s, worker)) return 0;
  int64_t n = 0;
  for (int64_t t = std::max<int64_t>(end - W / D * ratio, 0); t < end; ++t) {
    const int64_t page = page_of(a.page_table, a.values, s, t, worker), channel = t < end - ratio ? 0 : W - D;
    if (page < 0) return 0;
    const char *value = cell(a.values, t % page_size, 0, page), *score = cell(a.scores, t % page_size, 0, page);
    parts[n++] = {reinterpret_cast<const float *>(value) + channel, reinterpret_cast<const float *>(score) + channel,
                  row<const float>(a.bias, t % ratio) + channel};
  }
  return n;
}

// kLanes channels from d on, of which `width` are there.
F32 pool(const Part *parts, int64_t n, int64_t d, int64_t width) {
  const auto some = [&](const float *p) { return width == kLanes ? load<F32>(p + d) : load_first<F32>(p + d, width); };
  F32 top = splat(kLeast), total = {}, sum = {};
  for (int64_t t = 0; t < n; ++t) top = max(some(parts[t].score) + some(parts[t].bias), top);
  for (int64_t t = 0; t < n; ++t) {
    const F32 weight = exp(some(parts[t].score) + some(parts[t].bias) - top);
    total += weight;
    sum = fma(weight, some(parts[t].value), sum);
  }
  return n == 0 ? F32{} : sum / total;
}

Verdict check_compress(const luce_compress_args &a) {
  const int64_t W = a.values.ne[0], D = a.out.ne[0], m = a.out.ne[1];
  if (!is_f32(a.values) || !is_f32(a.scores) || !is_f32(a.bias) || !is_f32(a.out)) {
    return unsupported("values, scores, bias and out are F32");
  }
  if (!is_i32(a.page_table) || !is_i32(a.entry_seq) || !is_i32(a.last)) return unsupported("all others are I32");
  if (!same_shape(a.values, a.scores) || a.values.ne[2] != 1)
    return bad("values and scores have one shape and one head");
  if (W != D && W != 2 * D) return bad("a token has D channels or 2D");
  if (a.bias.ne[0] != W || a.bias.ne[1] > kMaxRatio) return bad("bias is [W, ratio], of 1024 tokens at most");
  return a.entry_seq.ne[0] == m && a.last.ne[0] == m ? Verdict{} : bad("entry_seq and last have m values");
}

void run_compress(const luce_compress_args &a, const Worker &worker) {
  const int64_t D = a.out.ne[0], n_blocks = (D + kChannels - 1) / kChannels;
  Part *parts = static_cast<Part *>(worker.scratch);
  const Range mine = share(true_rows(a.n_rows, a.out.ne[1]) * n_blocks, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t j = u / n_blocks, begin = u % n_blocks * kChannels, end = std::min(begin + kChannels, D);
    const int64_t n = gather(a, j, parts, worker);
    for (int64_t d = begin; d < end; d += kLanes) {
      const int64_t width = std::min<int64_t>(kLanes, end - d);
      store_first(row<float>(a.out, j) + d, pool(parts, n, d, width), width);
    }
  }
}

// ---- select ----

// Cells that row i chooses from.
int64_t n_cells(const luce_select_args &a, int64_t i, const Worker &worker) {
  if (!is_sequence(a.page_table, list<int32_t>(a.row_seq)[i], worker)) return 0;
  const int64_t n = list<int32_t>(a.row_cell)[i] + int64_t{1}, most = a.page_table.ne[0] * a.k_pages.ne[1];
  if (n > most) worker.fault(LUCE_FAULT_PAGE);
  return std::clamp<int64_t>(n, 0, most);
}

// Scores of the first n cells of the j-th page of row i's sequence.
void score_page(const luce_select_args &a, int64_t i, int64_t j, int64_t n, float *scores_out, const Worker &worker) {
  const int64_t D = a.q.ne[0], H = a.q.ne[1], page_size = a.k_pages.ne[1], cells = round_up(page_size, kLanes);
  const int64_t page = page_of(a.page_table, a.k_pages, list<int32_t>(a.row_seq)[i], j * page_size, worker);
  if (page < 0) {
    std::fill_n(scores_out, n, kLeast);
    return;
  }
  float *kt = static_cast<float *>(worker.scratch), *s = kt + D * cells;
  const float **q = reinterpret_cast<const float **>(s + H * cells);
  for (int64_t h = 0; h < H; ++h) q[h] = row<const float>(a.q, h, i);
  const Range whole = {0, round_up(n, kLanes)};
  with_type(a.k_pages.type, [&](auto type) { load_keys<type()>(a.k_pages, page, 0, whole, kt, cells); });
  scores(q, H, kt, D, whole, cells, s);
  const float *weights = row<const float>(a.weights, i);
  for (int64_t c = 0; c < n; c += kLanes) {
    F32 sum = {};
    for (int64_t h = 0; h < H; ++h) sum = fma(splat(weights[h]), max(load<F32>(s + h * cells + c), F32{}), sum);
    store_first(scores_out + c, sum == sum ? sum : splat(kLeast), std::min<int64_t>(kLanes, n - c));
  }
}

// The k cells of the largest of n scores; `ranked` has room for n.
void pick(const float *scores, float *ranked, int64_t n, int64_t k, int32_t *cells) {
  std::fill(cells + std::min(n, k), cells + k, -1);
  if (n <= k) {
    for (int64_t c = 0; c < n; ++c) cells[c] = static_cast<int32_t>(c);
    return;
  }
  std::copy_n(scores, n, ranked);
  std::nth_element(ranked, ranked + k - 1, ranked + n, std::greater<float>());
  const float least = ranked[k - 1];
  int64_t n_equal = k - std::count_if(scores, scores + n, [=](float s) { return s > least; });
  for (int64_t c = 0, e = 0; e < k; ++c) {
    if (scores[c] > least || (scores[c] == least && n_equal-- > 0)) cells[e++] = static_cast<int32_t>(c);
  }
}

Verdict check_select(const luce_select_args &a) {
  const int64_t D = a.q.ne[0], H = a.q.ne[1], n = a.q.ne[2];
  if (!is_f32(a.q) || !is_f32(a.weights)) return unsupported("q and weights are F32");
  if (!is_cache_type(a.k_pages)) return unsupported("pages are F32, F16, BF16, Q8_0 or Q4_0 (D a multiple of 32)");
  if (!is_i32(a.page_table) || !is_i32(a.row_seq) || !is_i32(a.row_cell) || !is_i32(a.cells)) {
    return unsupported("page_table, row_seq, row_cell and cells are I32");
  }
  if (a.k_pages.ne[0] != D || a.k_pages.ne[2] != 1) return bad("keys have D values and one head");
  if (a.weights.ne[0] != H || a.weights.ne[1] != n) return bad("weights are [H, n]");
  if (a.row_seq.ne[0] != n || a.row_cell.ne[0] != n || a.cells.ne[1] != n) return bad("row_* and cells have n rows");
  const int64_t floats = (D + H) * round_up(a.k_pages.ne[1], kLanes);
  if (floats * 4 + H * 8 > kScratchBytes) return unsupported("a page and its heads exceed the scratch of a thread");
  return {};
}

int64_t select_workspace(const luce_select_args &a, int n_threads) {
  return n_threads * 2 * a.page_table.ne[0] * a.k_pages.ne[1] * static_cast<int64_t>(sizeof(float));
}

void run_select(const luce_select_args &a, const Worker &worker) {
  const int64_t n = true_rows(a.n_rows, a.q.ne[2]), k = a.cells.ne[0], page_size = a.k_pages.ne[1];
  const int64_t most = a.page_table.ne[0] * page_size;
  float *workspace = static_cast<float *>(a.workspace.data);
  for (int64_t begin = 0; begin < n; begin += worker.count) {  // as many rows as there are threads to pick
    const int64_t end = std::min(begin + worker.count, n);
    int64_t unit = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t have = n_cells(a, i, worker);
      for (int64_t first = 0; have > k && first < have; first += page_size) {
        if (unit++ % worker.count != worker.index) continue;
        float *to = workspace + (i - begin) * 2 * most + first;
        score_page(a, i, first / page_size, std::min(page_size, have - first), to, worker);
      }
    }
    worker.barrier();
    const int64_t i = begin + worker.index;
    if (i < end) {
      const float *scores = workspace + worker.index * 2 * most;
      pick(scores, workspace + (worker.index * 2 + 1) * most, n_cells(a, i, worker), k, row<int32_t>(a.cells, i));
    }
    worker.barrier();
  }
}

// ---- merge ----

Verdict check_merge(const luce_merge_args &a) {
  for (const luce_tensor *t : {&a.a, &a.b, &a.a_lse, &a.b_lse, &a.out}) {
    if (!is_f32(*t)) return unsupported("all tensors are F32, contiguous along ne[0]");
  }
  if (!same_shape(a.a, a.b) || !same_shape(a.a, a.out)) return bad("a, b and out have one shape");
  if (!same_shape(a.a_lse, a.b_lse)) return bad("a_lse and b_lse have one shape");
  return a.a_lse.ne[0] == a.a.ne[1] && a.a_lse.ne[1] == a.a.ne[2] ? Verdict{} : bad("lse is [H, n]");
}

void run_merge(const luce_merge_args &a, const Worker &worker) {
  const int64_t D = a.out.ne[0], H = a.out.ne[1];
  const Range mine = share(true_rows(a.n_rows, a.out.ne[2]) * H, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / H, h = u % H;
    const float first = row<const float>(a.a_lse, i)[h], second = row<const float>(a.b_lse, i)[h];
    const float top = std::max(first, second);
    float share = 0, other = 0;
    if (top > kLeast) {
      share = exp(splat(first - top))[0], other = exp(splat(second - top))[0];
      const float total = share + other;
      share /= total, other /= total;
    }
    const float *x = row<const float>(a.a, h, i), *y = row<const float>(a.b, h, i);
    float *out = row<float>(a.out, h, i);
    for (int64_t d = 0; d < D; d += kLanes) {
      const int64_t width = std::min<int64_t>(kLanes, D - d);
      const F32 sum = fma(load_first<F32>(x + d, width), splat(share), load_first<F32>(y + d, width) * other);
      store_first(out + d, sum, width);
    }
  }
}

}  // namespace

LUCE_KERNEL(compress, check_compress, run_compress)
LUCE_KERNEL(select, check_select, run_select, select_workspace)
LUCE_KERNEL(merge, check_merge, run_merge)

}  // namespace luce::LUCE_ISA
