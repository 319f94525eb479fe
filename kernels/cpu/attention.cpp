// attention.cpp: attention over a paged cache, for prefill, decode and draft trees alike.
//
// A tile is a few rows of one sequence and the heads that read one KV head: each page is converted once for all of
// them. Pages are reduced in blocks of kBlockPages, counted from the sequence's first page, and the blocks are then
// merged in order, for every row. So a thread may take a tile, or (decode: few tiles) one block of a tile, and no bit
// changes.

#include "attention_page.h"
#include "attention_rows.h"
#include "kernel.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

constexpr int64_t kBlockPages = 8;
constexpr int64_t kMaxQueries = 48;  // of a tile, if a row has fewer: its sums stay near

int64_t heads_per_kv(const luce_attention_args &a) {
  return a.q.ne[1] / a.k_pages.ne[2];
}
int64_t count_blocks(int64_t n_pages) {
  return (n_pages + kBlockPages - 1) / kBlockPages;
}

// A thread's scratch for tiles of M queries in R rows.
struct Scratch {
  Scratch(void *memory, const luce_attention_args &a, int64_t R, int64_t M)
      : cells(round_up(a.k_pages.ne[1], kLanes)), o_stride(round_up(a.v_pages.ne[0], kLanes)) {
    char *next = static_cast<char *>(memory);
    take(next, q, M);
    take(next, kt, a.k_pages.ne[0] * cells);
    take(next, v, a.v_pages.ne[1] * o_stride);
    take(next, s, M * cells);
    take(next, o, M * o_stride);
    take(next, page, M);
    take(next, total, M);
    take(next, seen, R * cells);
    take(next, seen_by_any, cells);
    bytes = next - static_cast<char *>(memory);
  }

  int64_t cells;     // of a page, a multiple of kLanes
  int64_t o_stride;  // Dv, a multiple of kLanes
  const float **q;
  float *kt, *v, *s, *o;
  Softmax *page, *total;  // of each query: of this block of pages, of all blocks before it
  int32_t *seen, *seen_by_any;
  int64_t bytes;

 private:
  template <class T>
  static void take(char *&next, T *&part, int64_t n) {
    part = reinterpret_cast<T *>(next);
    next += round_up(n * sizeof(T), 64);
  }
};

// Rows of a tile that the scratch has room for.
int64_t most_rows(const luce_attention_args &a) {
  const int64_t G = heads_per_kv(a);
  int64_t R = std::max<int64_t>(1, kMaxQueries / G);
  while (R > 0 && Scratch(nullptr, a, R, R * G).bytes > kScratchBytes) --R;
  return R;
}

struct Tile {
  int64_t begin, end;  // rows
  int64_t kv;
  int64_t last_cell;  // the last that any of its rows may see
};

class Attention {
 public:
  Attention(const luce_attention_args &a, const Worker &worker)
      : a_(a),
        worker_(worker),
        rows_(a, worker),
        n_(true_rows(a.n_rows, a.q.ne[2])),
        n_kv_(a.k_pages.ne[2]),
        G_(heads_per_kv(a)),
        page_size_(a.k_pages.ne[1]),
        tile_rows_(std::min(most_rows(a), enough_tiles())),
        scratch_(worker.scratch, a, tile_rows_, tile_rows_ * G_) {}

  void run() {
    if (is_split()) {
      make_partials();
      worker_.barrier();
      merge_partials();
    } else {
      for_units([&](const Tile &tile) { whole_tile(tile); });
    }
  }

  // Rows whose blocks are shared out, when there are so few that threads would have nothing to do.
  static int64_t most_split_rows(const luce_attention_args &a, int n_threads) {
    return n_threads == 1 ? 0 : std::min(a.q.ne[2], (2 * n_threads - 1) / a.k_pages.ne[2]);
  }
  static int64_t workspace_bytes(const luce_attention_args &a, int n_threads) {
    return most_split_rows(a, n_threads) * a.q.ne[1] * count_blocks(a.page_table.ne[0]) * partial_floats(a) * 4;
  }

 private:
  static int64_t partial_floats(const luce_attention_args &a) { return a.v_pages.ne[0] + 2; }

  bool is_split() const { return n_ <= most_split_rows(a_, worker_.count); }
  int64_t enough_tiles() const { return std::max<int64_t>(1, n_ * n_kv_ / (4 * worker_.count)); }

  // f(tile) for this thread's tiles.
  template <class F>
  void for_units(F f) {
    int64_t unit = 0;
    for (int64_t begin = 0, end; begin < n_; begin = end) {
      end = begin + 1;
      while (end < n_ && end - begin < tile_rows_ && rows_.sequence(end) == rows_.sequence(begin)) ++end;
      for (int64_t kv = 0; kv < n_kv_; ++kv) {
        if (unit++ % worker_.count == worker_.index) f(Tile{begin, end, kv, rows_.last_cell(begin, end)});
      }
    }
  }

  int64_t blocks_of(const Tile &tile) const { return count_blocks((tile.last_cell + page_size_) / page_size_); }

  float *out(const Tile &tile, int64_t m) const {
    return row<float>(a_.out, tile.kv * G_ + m % G_, tile.begin + m / G_);
  }

  void whole_tile(const Tile &tile) {
    const int64_t M = (tile.end - tile.begin) * G_, Dv = a_.v_pages.ne[0];
    for (int64_t m = 0; m < M; ++m) {
      scratch_.total[m] = {};
      std::fill_n(out(tile, m), Dv, 0.0f);
    }
    for (int64_t block = 0; block < blocks_of(tile); ++block) {
      one_block(tile, block);
      for (int64_t m = 0; m < M; ++m) {
        merge(scratch_.page[m], scratch_.o + m * scratch_.o_stride, scratch_.total[m], out(tile, m), Dv);
      }
    }
    for (int64_t m = 0; m < M; ++m) finish(scratch_.total[m], tile.begin + m / G_, tile.kv * G_ + m % G_, out(tile, m));
  }

  float *partial(int64_t i, int64_t h, int64_t block) const {
    const int64_t n_blocks = count_blocks(a_.page_table.ne[0]);
    return static_cast<float *>(a_.workspace.data) + ((i * a_.q.ne[1] + h) * n_blocks + block) * partial_floats(a_);
  }

  void make_partials() {
    int64_t unit = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t last = rows_.last_cell(i, i + 1);
      for (int64_t kv = 0; kv < n_kv_; ++kv) {
        const Tile tile = {i, i + 1, kv, last};
        for (int64_t block = 0; block < blocks_of(tile); ++block) {
          if (unit++ % worker_.count != worker_.index) continue;
          one_block(tile, block);
          for (int64_t g = 0; g < G_; ++g) {
            float *to = partial(i, kv * G_ + g, block);
            std::memcpy(to, &scratch_.page[g], sizeof(Softmax));
            std::memcpy(to + 2, scratch_.o + g * scratch_.o_stride, a_.v_pages.ne[0] * sizeof(float));
          }
        }
      }
    }
  }

  void merge_partials() {
    const int64_t H = a_.q.ne[1];
    const Range mine = share(n_ * H, worker_);
    for (int64_t u = mine.begin; u < mine.end; ++u) {
      const int64_t i = u / H, h = u % H;
      float *to = row<float>(a_.out, h, i);
      std::fill_n(to, a_.v_pages.ne[0], 0.0f);
      Softmax total;
      for (int64_t block = 0; block < blocks_of({i, i + 1, 0, rows_.last_cell(i, i + 1)}); ++block) {
        const float *from = partial(i, h, block);
        merge({from[0], from[1]}, from + 2, total, to, a_.v_pages.ne[0]);
      }
      finish(total, i, h, to);
    }
  }

  void finish(const Softmax &total, int64_t i, int64_t h, float *out) const {
    Softmax all = total;
    if (a_.sinks.data != nullptr) {
      const float sink = list<float>(a_.sinks)[h];
      all.top = std::max(total.top, sink);
      all.total = total.total * exp(splat(total.top - all.top))[0] + exp(splat(sink - all.top))[0];
    }
    if (a_.lse.data != nullptr)
      row<float>(a_.lse, i)[h] = all.total == 0 ? -__builtin_inff() : all.top + std::log(all.total);
    if (total.total == 0) return;  // saw nothing: 0
    const float weight = exp(splat(total.top - all.top))[0] / all.total;
    for (int64_t d = 0; d < a_.v_pages.ne[0]; ++d) out[d] *= weight;
  }

  // Softmax and weighted values of a tile's queries over one block of pages, in scratch_.
  void one_block(const Tile &tile, int64_t block) {
    Scratch &s = scratch_;
    const int64_t M = (tile.end - tile.begin) * G_, D = a_.q.ne[0];
    for (int64_t m = 0; m < M; ++m) {
      s.q[m] = row<const float>(a_.q, tile.kv * G_ + m % G_, tile.begin + m / G_);
      s.page[m] = {};
    }
    std::fill_n(s.o, M * s.o_stride, 0.0f);
    const int32_t *table = rows_.page_table(tile.begin);
    const int64_t end = std::min((block + 1) * kBlockPages, tile.last_cell / page_size_ + 1);
    for (int64_t j = block * kBlockPages; j < end; ++j) {
      const int64_t page = table[j];
      if (page == -1) continue;
      if (page < 0 || page >= a_.cell_pos.ne[1]) {
        worker_.fault(LUCE_FAULT_PAGE);
        continue;
      }
      if (j < tile.last_cell / page_size_ && table[j + 1] >= 0 && table[j + 1] < a_.cell_pos.ne[1]) {
        prefetch(a_.k_pages, table[j + 1], tile.kv);
        prefetch(a_.v_pages, table[j + 1], tile.kv);
      }
      const Range cells = look(tile, j, page);
      if (cells.begin == cells.end) continue;
      const Range whole = {cells.begin / kLanes * kLanes, round_up(cells.end, kLanes)};
      with_type(a_.k_pages.type,
                [&](auto type) { load_keys<type()>(a_.k_pages, page, tile.kv, whole, s.kt, s.cells); });
      with_type(a_.v_pages.type, [&](auto type) {
        load_values<type()>(a_.v_pages, page, tile.kv, cells, s.seen_by_any, s.v, s.o_stride);
      });
      scores(s.q, M, s.kt, D, whole, s.cells, s.s);
      for (int64_t m = 0; m < M; ++m) {
        soften(s.s + m * s.cells, s.seen + m / G_ * s.cells, whole, a_.scale, a_.softcap, s.page[m],
               s.o + m * s.o_stride, s.o_stride);
      }
      add_values(s.s, M, s.cells, s.v, cells, s.o, s.o_stride);
    }
  }

  // Which cells of the j-th page of its sequence each row of the tile sees; returns the span that any of them sees.
  Range look(const Tile &tile, int64_t j, int64_t page) {
    int32_t *any = scratch_.seen_by_any;
    std::fill_n(any, scratch_.cells, 0);
    for (int64_t i = tile.begin; i < tile.end; ++i) {
      int32_t *seen = scratch_.seen + (i - tile.begin) * scratch_.cells;
      std::fill_n(seen, scratch_.cells, 0);
      rows_.look(i, j, page, seen);
      for (int64_t c = 0; c < page_size_; ++c) any[c] |= seen[c];
    }
    int64_t begin = 0, end = page_size_;
    while (begin < end && any[begin] == 0) ++begin;
    while (end > begin && any[end - 1] == 0) --end;
    return {begin, end};
  }

  const luce_attention_args &a_;
  const Worker &worker_;
  const AttentionRows rows_;
  const int64_t n_, n_kv_, G_, page_size_, tile_rows_;
  Scratch scratch_;
};

Verdict check(const luce_attention_args &a) {
  const Verdict verdict = check_attention(a);
  if (verdict.status != LUCE_OK || most_rows(a) > 0) return verdict;
  return unsupported("a page and the heads that read it exceed the scratch of a thread");
}

void run(const luce_attention_args &a, const Worker &worker) {
  Attention(a, worker).run();
}

int64_t workspace(const luce_attention_args &a, int n_threads) {
  return Attention::workspace_bytes(a, n_threads);
}

}  // namespace

LUCE_KERNEL(attention, check, run, workspace)

}  // namespace luce::LUCE_ISA
