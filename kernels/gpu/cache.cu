// cache.cu: kv_write and kv_copy: what goes into the paged cache. Pages are [D, page_size, n_kv, n_pages].

#include "cells.cuh"

namespace luce {
namespace {

constexpr int kWriteThreads = 128, kCopyThreads = 256;

Verdict check_pages(const luce_tensor &k_pages, const luce_tensor &v_pages, const luce_tensor &cell_pos) {
  for (const luce_tensor *pages : {&k_pages, &v_pages}) {
    if (!is_cache_type(*pages)) return unsupported("pages are F32, F16, BF16, Q8_0 or Q4_0 (D a multiple of 32)");
    if (pages->ne[1] != cell_pos.ne[0] || pages->ne[3] != cell_pos.ne[1]) return bad("pages and cell_pos differ");
  }
  if (!is_i32(cell_pos)) return unsupported("cell_pos is I32");
  return k_pages.ne[2] == v_pages.ne[2] ? Verdict{} : bad("k_pages and v_pages have one number of heads");
}

Verdict check_write(const luce_kv_write_args &a) {
  if (!is_f32(a.k) || !is_f32(a.v)) return unsupported("k and v are F32, contiguous along D");
  if (!is_i32(a.slots) || !is_i32(a.positions)) return unsupported("slots and positions are I32");
  const int64_t n = a.slots.ne[0];
  if (a.k.ne[2] != n || a.v.ne[2] != n || a.positions.ne[0] != n) return bad("k, v, slots, positions have n rows");
  if (a.k.ne[0] != a.k_pages.ne[0] || a.v.ne[0] != a.v_pages.ne[0]) return bad("heads and pages have one D");
  if (a.k.ne[1] != a.k_pages.ne[2] || a.v.ne[1] != a.k.ne[1]) return bad("k, v and pages have one number of heads");
  return check_pages(a.k_pages, a.v_pages, a.cell_pos);
}

void launch_write(const luce_kv_write_args &a, Launcher &launcher) {
  const dim3 grid(static_cast<unsigned>(a.k.ne[1]), static_cast<unsigned>(a.slots.ne[0]), 2);
  launcher(kernel_kv_write, grid, kWriteThreads, 0, a);
}

Verdict check_copy(const luce_kv_copy_args &a) {
  if (!is_i32(a.copies)) return unsupported("copies are I32");
  if (a.copies.ne[0] != 3) return bad("a copy is src, dst, n_cells");
  return check_pages(a.k_pages, a.v_pages, a.cell_pos);
}

void launch_copy(const luce_kv_copy_args &a, Launcher &launcher) {
  launcher(kernel_kv_copy, dim3(static_cast<unsigned>(a.k_pages.ne[2]), 2), kCopyThreads, 0, a);
}

}  // namespace

// A block stores one head of one row, its keys or its values.
LUCE_GLOBAL(kv_write)(const __grid_constant__ luce_kv_write_args a, uint32_t *fault) {
  begin();
  const int h = blockIdx.x, i = blockIdx.y, lane = threadIdx.x % kLanes;
  const bool is_key = blockIdx.z == 0;
  if (i >= true_rows(a.n_rows, a.slots.ne[0])) return;
  const int64_t slot = list<int32_t>(a.slots)[i], page_size = a.cell_pos.ne[0];
  if (slot == -1) return;
  if (slot < 0 || slot >= page_size * a.cell_pos.ne[1]) return set_fault(fault, LUCE_FAULT_PAGE);
  const luce_tensor &pages = is_key ? a.k_pages : a.v_pages;
  const float *x = row<const float>(is_key ? a.k : a.v, h, i);
  uint8_t *to = cell(pages, slot % page_size, h, slot / page_size);
  const int D = static_cast<int>(pages.ne[0]);
  for (int k = threadIdx.x / kLanes * kLanes; k < D; k += kWriteThreads) {
    const bool is_there = k + lane < D;
    store_cell(pages.type, to, k, is_there ? x[k + lane] : 0.0f, is_there);
  }
  if (is_key && h == 0 && threadIdx.x == 0) {
    row<int32_t>(a.cell_pos, slot / page_size)[slot % page_size] = list<int32_t>(a.positions)[i];
  }
}

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

LUCE_OP(kv_write, check_write, launch_write)
LUCE_OP(kv_copy, check_copy, launch_copy)
