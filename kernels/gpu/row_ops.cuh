// row_ops.cuh: ops whose row i needs row i alone, as a block of row_chain.cu does them: rms_norm, add, glu, quantize,
// rope, kv_write.
#pragma once

#include "cells.cuh"
#include "quantize.cuh"
#include "row_source.cuh"

namespace luce {

constexpr int kMostOps = 6;
constexpr int kShortest = 256;  // longer vectors are normed by the whole block

// Vectors of floats [D, H, n], or one for all; strides are bytes. Kernels read their arguments from memory at each
// launch, so they get what they need and no more.
struct Vectors {
  char *data;
  int64_t row;
  int32_t head, D, H;

  LUCE_DEVICE float *at(int h, int i) const { return reinterpret_cast<float *>(data + i * row + int64_t{h} * head); }
};

struct RowOp {
  int32_t op;    // luce_op
  int32_t mode;  // of rope; of glu the activation
  float eps;     // of rms_norm
  Vectors x, y;  // y: the norm's weight, what is added, what is gated, the angles, or kv_write's values; null: none
  Vectors out;
  Vectors codes;  // where what a norm or a glu makes goes as Q8_A, too; null: nowhere
};

// Keys or values of the cache; strides are bytes.
struct Pages {
  uint8_t *data;
  int64_t page;
  int32_t cell, head, type, D;
};

struct KvWrite {
  Pages k, v;
  const int32_t *slots, *positions;
  int32_t *cell_pos;
  int32_t pos_page, page_size, n_pages;
};

struct RowChain {
  const int32_t *n_rows;
  int32_t bound, n_ops;
  int32_t part;     // values of a row that a block does; 0: all
  int32_t n_heads;  // blocks that share the heads of a row; 0: one has them all
  KvWrite kv;       // of the op that writes to the cache
  RowOp ops[kMostOps];
};

// Values of a row, or heads.
struct Range {
  int begin, end;
};

// A warp norms a short vector, lane by lane four values side by side of every 128.
LUCE_DEVICE void do_short_norms(const RowOp &a, int i, Range heads) {
  constexpr int kFours = kShortest / kPiece;
  const int D = a.x.D, first = 4 * (threadIdx.x % kLanes);
  const float *weight = a.y.at(0, 0);
#pragma unroll 1
  for (int h = heads.begin + threadIdx.x / kLanes; h < heads.end; h += kRowBlock / kLanes) {
    float4 x[kFours];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      x[j] = load_four(a.x.at(h, i), first + kPiece * j, D);
      sum += sum_of_warp(add_squares(0, x[j]));
    }
    const float scale = scale_of_norm(sum, D, a.eps);
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int k = first + kPiece * j;
      const float4 y = normed(x[j], scale);
      store_four(a.out.at(h, i), k, D, weight ? times(y, load_four(weight, k, D)) : y);
    }
  }
}

// Puts values k to k + 3 of a row down, and their codes. Whole warps call it: k may be beyond the end.
LUCE_DEVICE void put_four(const RowOp &a, int i, int k, int end, float4 v) {
  store_four(a.out.at(0, i), k, end, v);
  if (a.codes.data == nullptr) return;
  const FourCodes codes(v);
  if (k < end) codes.put(reinterpret_cast<uint8_t *>(a.codes.at(0, i)), a.codes.D, k);
}

// Of one vector to a row, of up to kMostMade values: all are under way at once.
LUCE_DEVICE void do_row_norm(const RowOp &a, int i, float *room) {
  constexpr int kHeld = kMostMade / kRowStep;
  const int D = a.x.D, first = 4 * threadIdx.x, lane = threadIdx.x % kLanes;
  const float *weight = a.y.at(0, 0);
  float4 held[kHeld], weights[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    held[j] = load_four(a.x.at(0, i), first + j * kRowStep, D);
    weights[j] = weight ? load_four(weight, first + j * kRowStep, D) : float4{1, 1, 1, 1};
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const float sum = sum_of_warp(add_squares(0, held[j]));
    if (lane == 0) room[(first + j * kRowStep) / kPiece] = sum;
  }
  __syncthreads();
  const float scale = scale_of_norm(sum_of_warp(room[lane]), D, a.eps);
#pragma unroll 1
  for (int j = 0; j < kHeld; ++j) {
    const int k = first + j * kRowStep;
    if (k - 4 * lane >= D) return;
    float4 v = held[0], w = weights[0];
#pragma unroll
    for (int other = 1; other < kHeld; ++other) {
      if (j == other) v = held[other], w = weights[other];
    }
    put_four(a, i, k, D, times(normed(v, scale), w));
  }
}

// The same sum for a longer vector as RowMaker's.
LUCE_DEVICE void do_norm(const RowOp &a, int i, Range heads, float *room) {
  const int D = a.x.D;
  if (D <= kShortest) return do_short_norms(a, i, heads);
  if (a.x.H == 1 && D <= kMostMade) return do_row_norm(a, i, room);
  const float *weight = a.y.at(0, 0);
#pragma unroll 1
  for (int h = heads.begin; h < heads.end; ++h) {
    const int lane = threadIdx.x % kLanes;
    float own = 0;  // of every 32nd piece
#pragma unroll 1
    for (int begin = 0; begin < D; begin += kMostMade) {
      __syncthreads();
#pragma unroll 1
      for (int k = 4 * threadIdx.x; k < kMostMade; k += kRowStep) {
        const float sum = sum_of_warp(add_squares(0, load_four(a.x.at(h, i), begin + k, D)));
        if (lane == 0) room[k / kPiece] = sum;
      }
      __syncthreads();
      own += room[lane];
    }
    const float scale = scale_of_norm(sum_of_warp(own), D, a.eps);
#pragma unroll 1
    for (int k = 4 * threadIdx.x; k < D; k += kRowStep) {
      const float4 y = normed(load_four(a.x.at(h, i), k, D), scale);
      store_four(a.out.at(h, i), k, D, weight ? times(y, load_four(weight, k, D)) : y);
    }
  }
}

LUCE_DEVICE void do_add(const RowOp &a, int i, Range columns) {
#pragma unroll 1
  for (int k = columns.begin + 4 * threadIdx.x; k < columns.end; k += kRowStep) {
    const float4 v = load_four(a.x.at(0, i), k, columns.end), w = load_four(a.y.at(0, i), k, columns.end);
    store_four(a.out.at(0, i), k, columns.end, {v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w});
  }
}

LUCE_DEVICE void do_glu(const RowOp &a, int i, Range columns) {
  const int lane_four = 4 * (threadIdx.x % kLanes);
#pragma unroll 1
  for (int k = columns.begin + 4 * threadIdx.x; k - lane_four < columns.end; k += kRowStep) {
    const float4 gate = load_four(a.x.at(0, i), k, columns.end), up = load_four(a.y.at(0, i), k, columns.end);
    put_four(a, i, k, columns.end, gated(gate, up, a.mode));
  }
}

LUCE_DEVICE void do_quantize(const RowOp &a, int i, Range columns) {
  uint8_t *out = reinterpret_cast<uint8_t *>(a.out.at(0, i));
  // Whole warps, since lanes look at each other; those beyond the end write nothing.
#pragma unroll 1
  for (int first = columns.begin; first < columns.end; first += kRowStep) {
    const int k = first + 4 * threadIdx.x;
    if (k - 4 * static_cast<int>(threadIdx.x % kLanes) >= columns.end) break;
    const FourCodes four(load_four(a.x.at(0, i), k, columns.end));
    if (k < columns.end) four.put(out, a.x.D, k);
  }
}

// A thread turns pairs, and reads one before it writes it: out may be x.
LUCE_DEVICE void do_rope(const RowOp &a, int i, Range heads) {
  const int D = a.x.D, H = heads.end - heads.begin, half = a.y.D / 2, rest = D - 2 * half;
  const float *angles = a.y.at(0, i);
  const bool is_neox = a.mode == LUCE_ROPE_NEOX;
#pragma unroll 1
  for (int u = threadIdx.x; u < H * half; u += kRowBlock) {
    const int h = heads.begin + u / half, p = u % half;
    const float *x = a.x.at(h, i);
    float *out = a.out.at(h, i);
    const int first = is_neox ? p : 2 * p, second = is_neox ? p + half : 2 * p + 1;
    const float v = x[first], w = x[second], cosine = angles[2 * p], sine = angles[2 * p + 1];
    out[first] = v * cosine - w * sine;
    out[second] = v * sine + w * cosine;
  }
#pragma unroll 1
  for (int u = threadIdx.x; u < H * rest; u += kRowBlock) {
    const int h = heads.begin + u / rest, k = 2 * half + u % rest;
    a.out.at(h, i)[k] = a.x.at(h, i)[k];
  }
}

// A warp stores 32 values of one head at a time. `slot`: the row's.
LUCE_DEVICE void do_kv_write(const RowOp &a, const KvWrite &kv, int i, int slot, Range heads, uint32_t *fault) {
  if (slot == -1) return;
  if (slot < 0 || slot >= int64_t{kv.page_size} * kv.n_pages) return set_fault(fault, LUCE_FAULT_PAGE);
  const int page = slot / kv.page_size, c = slot % kv.page_size;
  const int H = heads.end - heads.begin, lane = threadIdx.x % kLanes;
  const int of_k = (kv.k.D + kLanes - 1) / kLanes, of_v = (kv.v.D + kLanes - 1) / kLanes;
#pragma unroll 1
  for (int u = threadIdx.x / kLanes; u < H * (of_k + of_v); u += kRowBlock / kLanes) {
    const bool is_k = u < H * of_k;
    const Vectors &from = is_k ? a.x : a.y;
    const Pages &to = is_k ? kv.k : kv.v;
    const int piece = is_k ? u : u - H * of_k, pieces = is_k ? of_k : of_v;
    const int h = heads.begin + piece / pieces, k = piece % pieces * kLanes;
    const bool is_there = k + lane < to.D;
    const float x = is_there ? from.at(h, i)[k + lane] : 0.0f;
    uint8_t *cell = to.data + page * to.page + int64_t{h} * to.head + int64_t{c} * to.cell;
    store_cell(to.type, cell, k, x, is_there);
  }
  if (threadIdx.x != 0 || heads.begin != 0) return;
  char *positions = reinterpret_cast<char *>(kv.cell_pos) + int64_t{page} * kv.pos_page;
  reinterpret_cast<int32_t *>(positions)[c] = kv.positions[i];
}

}  // namespace luce
