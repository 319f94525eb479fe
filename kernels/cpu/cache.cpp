// cache.cpp: kv_write and kv_copy: what goes into the paged cache. Pages are [D, page_size, n_kv, n_pages].

#include <cstring>

#include "cells.h"
#include "kernel.h"
#include "ops.h"

namespace luce::LUCE_ISA {
namespace {

// One head's D values into a cell.
void store_cell(const float *x, char *cell, int32_t type, int64_t D) {
  if (type == LUCE_F32) {
    std::memcpy(cell, x, D * sizeof(float));
  } else if (type == LUCE_Q8_0) {
    for (int64_t k = 0; k < D; k += 32) store_q8_0(x + k, cell + k / 32 * kQ8Bytes);
  } else if (type == LUCE_Q4_0) {
    for (int64_t k = 0; k < D; k += 32) store_q4_0(x + k, cell + k / 32 * kQ4Bytes);
  } else {
    int64_t k = 0;
    const auto convert = [type](F32 v) { return type == LUCE_F16 ? f32_to_f16(v) : f32_to_bf16(v); };
    for (; k + kLanes <= D; k += kLanes) store(cell + 2 * k, convert(load<F32>(x + k)));
    if (k < D) store_first(cell + 2 * k, convert(load_first<F32>(x + k, D - k)), D - k);
  }
}

void run_write(const luce_kv_write_args &a, const Worker &worker) {
  const int32_t *slots = static_cast<const int32_t *>(a.slots.data);
  const int32_t *positions = static_cast<const int32_t *>(a.positions.data);
  const int64_t n_kv = a.k.ne[1], page_size = a.cell_pos.ne[0], n_slots = page_size * a.cell_pos.ne[1];
  const Range mine = share(true_rows(a.n_rows, a.slots.ne[0]) * n_kv, worker);
  for (int64_t u = mine.begin; u < mine.end; ++u) {
    const int64_t i = u / n_kv, h = u % n_kv, slot = slots[i];
    if (slot == -1) continue;
    if (slot < 0 || slot >= n_slots) {
      worker.fault(LUCE_FAULT_PAGE);
      continue;
    }
    const int64_t page = slot / page_size, c = slot % page_size;
    store_cell(row<const float>(a.k, h, i), cell(a.k_pages, c, h, page), a.k_pages.type, a.k.ne[0]);
    store_cell(row<const float>(a.v, h, i), cell(a.v_pages, c, h, page), a.v_pages.type, a.v.ne[0]);
    if (h == 0) row<int32_t>(a.cell_pos, page)[c] = positions[i];
  }
}

void copy_cells(const luce_tensor &pages, int64_t from, int64_t to, int64_t n_cells, int64_t h) {
  for (int64_t c = 0; c < n_cells; ++c) std::memcpy(cell(pages, c, h, to), cell(pages, c, h, from), cell_bytes(pages));
}

// Threads share the heads, not the copies: a copy may read what the one before it wrote.
void run_copy(const luce_kv_copy_args &a, const Worker &worker) {
  const int64_t page_size = a.cell_pos.ne[0], n_pages = a.cell_pos.ne[1];
  const Range heads = share(a.k_pages.ne[2], worker);
  const int64_t n = true_rows(a.n_rows, a.copies.ne[1]);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t *copy = row<const int32_t>(a.copies, i);
    const int64_t from = copy[0], to = copy[1], n_cells = copy[2];
    if (from < 0 || from >= n_pages || to < 0 || to >= n_pages || n_cells < 0 || n_cells > page_size) {
      worker.fault(LUCE_FAULT_PAGE);
      continue;
    }
    if (from == to) continue;
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      copy_cells(a.k_pages, from, to, n_cells, h);
      copy_cells(a.v_pages, from, to, n_cells, h);
    }
    if (heads.begin == 0 && heads.end > 0) {
      std::memcpy(row<char>(a.cell_pos, to), row<char>(a.cell_pos, from), n_cells * sizeof(int32_t));
    }
  }
}

}  // namespace

LUCE_KERNEL(kv_write, check_kv_write, run_write)
LUCE_KERNEL(kv_copy, check_kv_copy, run_copy)

}  // namespace luce::LUCE_ISA
