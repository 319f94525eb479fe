// cache.cu: kv_copy: pages of the cache, [D, page_size, n_kv, n_pages], copied on write.

#include "cells.cuh"
#include "ops.h"

namespace luce {
namespace {

constexpr int kCopyThreads = 256;

void launch_copy(const luce_kv_copy_args &a, Launcher &launcher) {
  launcher(kernel_kv_copy, dim3(static_cast<unsigned>(a.k_pages.ne[2]), 2), kCopyThreads, 0, a);
}

}  // namespace

// A block copies one head's keys or values. A copy may read what the one before it wrote: a thread does all copies, in
// order, for its places in a page.
LUCE_GLOBAL(kv_copy)(const __grid_constant__ luce_kv_copy_args a, uint32_t *fault) {
  begin();
  const int h = blockIdx.x, page_size = static_cast<int>(a.cell_pos.ne[0]);
  const luce_tensor &pages = blockIdx.y == 0 ? a.k_pages : a.v_pages;
  const int per_cell = cell_bytes(pages) / 2, n = true_rows(a.n_rows, a.copies.ne[1]);
  for (int i = 0; i < n; ++i) {
    const int32_t *copy = row<const int32_t>(a.copies, i);
    const int64_t from = copy[0], to = copy[1];
    const int n_cells = copy[2];
    if (from < 0 || from >= a.cell_pos.ne[1] || to < 0 || to >= a.cell_pos.ne[1] || n_cells < 0 ||
        n_cells > page_size) {
      set_fault(fault, LUCE_FAULT_PAGE);
      continue;
    }
    for (int u = threadIdx.x; u < n_cells * per_cell; u += kCopyThreads) {
      const int c = u / per_cell, at = u % per_cell;
      reinterpret_cast<uint16_t *>(cell(pages, c, h, to))[at] =
          reinterpret_cast<const uint16_t *>(cell(pages, c, h, from))[at];
    }
    if (h != 0 || blockIdx.y != 0) continue;
    for (int c = threadIdx.x; c < n_cells; c += kCopyThreads) {
      row<int32_t>(a.cell_pos, to)[c] = row<const int32_t>(a.cell_pos, from)[c];
    }
  }
}

}  // namespace luce

LUCE_OP(kv_copy, check_kv_copy, launch_copy)
