// attention_feed.cuh: the cells of a row on their way to shared memory, and its own cell on its way to the cache
// (attention_row.cuh).
#pragma once

#include "attention.cuh"

namespace luce {

// The heads of queries, keys and values of a row, normed and turned; the row's cell, and what it sees.
struct RowAttention {
  AttentionArgs a;
  const float *k, *v, *q_norm, *k_norm, *angles;  // null: none
  const int32_t *slots, *positions;
  uint8_t *k_cells, *v_cells;
  float *q_made, *k_made;  // where the turned heads are wanted too; null: nowhere
  int32_t *cell_positions;
  int32_t k_row_head, v_row_head;  // bytes from head to head of k and v
  float q_eps, k_eps;
  int32_t n_rot, mode, n_stages;
};

constexpr int kRowWarps = kAttentionThreads / kLanes;                       // and pages of a round
constexpr int kPieceBytes = 4096, kPieceValues = kPieceBytes / kLanes / 2;  // of a page's keys or values; of each key

// What a block does: split x, and every n_x-th, of KV head h, for query heads from first_head on.
struct RowShare {
  int x, n_x, h, first_head;

  // The round of the row that is this one of the block.
  LUCE_DEVICE int round_of(int number, int log_rounds) const {
    const int split = x + (number >> log_rounds) * n_x;
    return (split << log_rounds) + number - (number >> log_rounds << log_rounds);
  }
};

// The rings of a block; `n_stages` is 2 or 4.
constexpr int64_t row_ring_bytes(int64_t n_stages) {
  return kRowWarps * n_stages * kPieceBytes;
}

// The cells of a warp's pages, one of each of the block's rounds, on their way into the warp's ring: kPieceValues of
// all keys of a page at a time, then the values of as many cells as make a piece. Keys are copied in such an order that
// 16 bytes of each, as lanes that have a cell read them, lie in different banks.
template <int D>
struct RowFeed {
  static constexpr int kPieces = D / kPieceValues, kPerCell = D / 8;  // of keys, and of values; 16 bytes of a value

  const RowAttention &s;
  const RowShare &share;
  const Viewer &viewer;
  uint8_t *ring;
  uint32_t *fault;
  int slot, n_pages, log_rounds, lane;
  int page_number = 0, piece = 0, stage = 0;  // of the next copy
  int pages, page, position;                  // lane i has page number i of 32; the lane's cell is in the next page
  bool is_wanted = false;
  unsigned seen = 0;  // lane i has the cells of page number i that are seen
  int own = -1;       // the number of the page that has the row's cell
  const uint8_t *from = nullptr;
  int step = 0;

  LUCE_DEVICE RowFeed(const RowAttention &s, const RowShare &share, const Viewer &viewer, uint8_t *ring, int slot,
                      int n_pages, int log_rounds, uint32_t *fault)
      : s(s),
        share(share),
        viewer(viewer),
        ring(ring),
        fault(fault),
        slot(slot),
        n_pages(n_pages),
        log_rounds(log_rounds),
        lane(threadIdx.x % kLanes) {
    look(0);
  }

  // Asks for the next piece. Pieces of a page of which nothing is seen are not copied.
  LUCE_DEVICE void next() {
    const AttentionArgs &a = s.a;
    if (share.round_of(page_number, log_rounds) * kRowWarps < n_pages) {
      if (piece == 0) page = page_of(page_number), is_wanted = page >= 0;
      // Where there is no window, copies need not wait for positions.
      if (piece == (a.window > 0 ? 0 : 1)) find_seen();
    } else {
      is_wanted = false;
    }
    if (is_wanted) {
      int even = 16 * lane, odd = even;
      if (piece < kPieces) {
        const int row = lane / 8;
        even = row * 128 + (lane % 8 ^ row) * 16, odd = even ^ 64;
        if (piece == 0) {
          from = a.key(row, share.h, page) + lane % 8 * 16, step = 4 * a.k_cell;
          // Of the first page they are wanted at once, and there is no room for all.
#pragma unroll
          for (int line = 0; line < 2 * D && page_number == 0; line += kLineBytes) {
            prefetch(a.value(lane, share.h, page) + line);
          }
        }
      } else if (piece == kPieces) {
        from = a.value(lane / kPerCell, share.h, page) + lane % kPerCell * 16, step = kLanes / kPerCell * a.v_cell;
      }
      uint8_t *const to = ring + stage * kPieceBytes;
#pragma unroll
      for (int i = 0; i < kPieceBytes / 512; ++i) copy_async(to + i * 512 + (i % 2 ? odd : even), from + i * step);
      from += piece < kPieces ? 2 * kPieceValues : 8 * step;
    }
    commit_copies();
    if (++piece == 2 * kPieces) piece = 0, ++page_number;
    if (++stage == s.n_stages) stage = 0;
  }

  // The oldest piece that was asked for, which is there then; the next one takes its place.
  LUCE_DEVICE uint8_t *wait() const {
    if (s.n_stages == 2) {
      wait_for_copies<1>();
    } else {
      wait_for_copies<3>();
    }
    __syncwarp();
    return ring + stage * kPieceBytes;
  }

  LUCE_DEVICE unsigned seen_of(int number) const { return __shfl_sync(kAllLanes, seen, number % kLanes); }

 private:
  // The place, among the pages of the sequence, of the warp's page in the block's round of this number.
  LUCE_DEVICE int place_of(int number) const {
    return share.round_of(number, log_rounds) * kRowWarps + threadIdx.x / kLanes;
  }
  LUCE_DEVICE int page_of(int number) const { return __shfl_sync(kAllLanes, pages, number % kLanes); }

  // Asks which position the lane's cell has in the page of this number.
  LUCE_DEVICE void look(int number) {
    if (number % kLanes == 0) {
      const int j = place_of(number + lane);
      pages = j < n_pages ? viewer.page(j, fault) : -1;
    }
    const int next = page_of(number);
    const bool is_own = slot >= 0 && next == slot / kLanes && lane == slot % kLanes;
    position = is_own ? s.positions[0] : next >= 0 ? s.a.position_of(lane, next) : 0;
  }

  // The row is no tree, so it sees the cells up to its own that its window leaves.
  LUCE_DEVICE void find_seen() {
    const uint32_t distance = static_cast<uint32_t>(viewer.position) - static_cast<uint32_t>(position);
    const bool is_near = distance < (s.a.window > 0 ? static_cast<uint32_t>(s.a.window) : 0x80000000u);
    const unsigned any =
        __ballot_sync(kAllLanes, page >= 0 && place_of(page_number) * kLanes + lane <= viewer.own_cell && is_near);
    if (any == 0) is_wanted = false;
    if (lane == page_number % kLanes) seen = any;
    if (slot >= 0 && page == slot / kLanes) own = page_number;
    look(page_number + 1);
  }
};

// ---- the own cell ----

LUCE_DEVICE void put_pair(__half2 *to, float2 x) {
  *to = __floats2half2_rn(x.x, x.y);
}
LUCE_DEVICE void put_pair(__nv_bfloat162 *to, float2 x) {
  *to = __floats2bfloat162_rn(x.x, x.y);
}

// A warp: the row's key and value of KV head h, in shared memory, into their cell.
template <class Pair, int D>
LUCE_DEVICE void write_cell(const RowAttention &s, int h, int slot, const float *key, const float *value) {
  const int lane = threadIdx.x % kLanes, page = slot / kLanes, c = slot % kLanes;
  Pair *const k_cell = reinterpret_cast<Pair *>(s.k_cells + (s.a.key(c, h, page) - s.a.k_pages));
  Pair *const v_cell = reinterpret_cast<Pair *>(s.v_cells + (s.a.value(c, h, page) - s.a.v_pages));
#pragma unroll
  for (int i = lane; i < D / 2; i += kLanes) {
    put_pair(k_cell + i, reinterpret_cast<const float2 *>(key)[i]);
    put_pair(v_cell + i, reinterpret_cast<const float2 *>(value)[i]);
  }
  if (lane == 0) {
    char *const positions = reinterpret_cast<char *>(s.cell_positions) + int64_t{page} * s.a.pos_page;
    reinterpret_cast<int32_t *>(positions)[c] = s.positions[0];
  }
}

// The row's own key, into the piece to which its cell was copied before it was there.
template <class Pair>
LUCE_DEVICE void put_own_key(uint8_t *piece, int c, const float *key) {
  const int d = 2 * (threadIdx.x % kLanes);
  put_pair(reinterpret_cast<Pair *>(piece + c * 128 + (d / 8 ^ c % 8) * 16 + d % 8 * 2),
           *reinterpret_cast<const float2 *>(key + d));
  __syncwarp();
}

}  // namespace luce
