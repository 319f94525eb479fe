// row_chain.cu: ops whose row i needs row i alone: rms_norm, add, glu, quantize, rope, kv_write. Such ops that follow
// each other are one launch, in which a block does one row, op after op: a launch costs about a microsecond, an op
// within one a fraction of that.
//
// Where no op of a chain joins values across its row (add, glu, quantize), a block has 1024 values. The
// order of a sum depends on D alone, so a chain has the bits of its ops run apart.

#include <type_traits>

#include "cells.cuh"
#include "math.cuh"
#include "ops.h"
#include "overlap.h"
#include "quantize.cuh"

namespace luce {

constexpr int kMostOps = 6;

// One op of a chain, by its luce_op.
struct RowOp {
  int32_t op;
  union {
    luce_rms_norm_args rms_norm;
    luce_add_args add;
    luce_glu_args glu;
    luce_quantize_args quantize;
    luce_rope_args rope;
    luce_kv_write_args kv_write;
  };
};

struct RowChain {
  const int32_t *n_rows;
  int32_t bound, n_ops;
  int32_t part;  // values of a row that a block does; 0: all
  RowOp ops[kMostOps];
};

namespace {

constexpr int kThreads = 512, kWarps = kThreads / kLanes, kPart = 1024;
constexpr int kShortest = 256;  // longer vectors are normed by the whole block

struct Columns {
  int begin, end;
};
LUCE_DEVICE void do_norm(const luce_rms_norm_args &a, int i, float *room) {
  const int D = static_cast<int>(a.x.ne[0]), H = static_cast<int>(a.x.ne[1]);
  const float *weight = list<float>(a.weight);
  const auto norm = [&](int h, int first, int step, auto sum_of) {
    const float *x = row<const float>(a.x, h, i);
    float *out = row<float>(a.out, h, i), sum = 0;
    for (int k = first; k < D; k += step) sum = fmaf(x[k], x[k], sum);
    const float scale = 1 / sqrtf(sum_of(sum) / static_cast<float>(D) + a.eps);
    for (int k = first; k < D; k += step) {
      const float y = x[k] * scale;
      out[k] = weight ? y * weight[k] : y;
    }
  };
  if (D <= kShortest) {
    for (int h = threadIdx.x / kLanes; h < H; h += kWarps) norm(h, threadIdx.x % kLanes, kLanes, sum_of_warp);
  } else {
    for (int h = 0; h < H; ++h) norm(h, threadIdx.x, kThreads, [=](float sum) { return sum_of_block(sum, room); });
  }
}

LUCE_DEVICE void do_add(const luce_add_args &a, int i, Columns columns) {
  const float *x = row<const float>(a.a, i), *y = row<const float>(a.b, i);
  float *out = row<float>(a.out, i);
  for (int k = columns.begin + threadIdx.x; k < columns.end; k += kThreads) out[k] = x[k] + y[k];
}

LUCE_DEVICE void do_glu(const luce_glu_args &a, int i, Columns columns) {
  const float *gate = row<const float>(a.gate, i), *up = row<const float>(a.up, i);
  float *out = row<float>(a.out, i);
  for (int k = columns.begin + threadIdx.x; k < columns.end; k += kThreads) {
    out[k] = (a.activation == LUCE_SILU ? times_sigmoid(gate[k], gate[k]) : gelu_tanh(gate[k])) * up[k];
  }
}

LUCE_DEVICE void do_quantize(const luce_quantize_args &a, int i, Columns columns) {
  const float *x = row<const float>(a.x, i);
  uint8_t *out = row<uint8_t>(a.out, i);
  // Whole warps, since lanes look at each other; those beyond the end write nothing.
  for (int first = columns.begin; first < columns.end; first += 4 * kThreads) {
    const int k = first + 4 * threadIdx.x;
    if (k - 4 * static_cast<int>(threadIdx.x % kLanes) >= columns.end) break;
    const bool is_there = k < columns.end;
    const float4 v = is_there ? make_float4(x[k], x[k + 1], x[k + 2], x[k + 3]) : make_float4(0, 0, 0, 0);
    quantize_four(v, out, a.x.ne[0], k, is_there);
  }
}

// A thread turns pairs, and reads one before it writes it: out may be x.
LUCE_DEVICE void do_rope(const luce_rope_args &a, int i) {
  const int D = static_cast<int>(a.x.ne[0]), H = static_cast<int>(a.x.ne[1]);
  const int half = static_cast<int>(a.angles.ne[0]) / 2, rest = D - 2 * half;
  const float *angles = row<const float>(a.angles, i);
  const bool is_neox = a.mode == LUCE_ROPE_NEOX;
  for (int u = threadIdx.x; u < H * half; u += kThreads) {
    const int h = u / half, p = u % half;
    const float *x = row<const float>(a.x, h, i);
    float *out = row<float>(a.out, h, i);
    const int first = is_neox ? p : 2 * p, second = is_neox ? p + half : 2 * p + 1;
    const float v = x[first], w = x[second], cosine = angles[2 * p], sine = angles[2 * p + 1];
    out[first] = v * cosine - w * sine;
    out[second] = v * sine + w * cosine;
  }
  for (int u = threadIdx.x; u < H * rest; u += kThreads) {
    const int h = u / rest, k = 2 * half + u % rest;
    row<float>(a.out, h, i)[k] = row<const float>(a.x, h, i)[k];
  }
}

// A warp stores 32 values of one head at a time.
LUCE_DEVICE void do_kv_write(const luce_kv_write_args &a, int i, uint32_t *fault) {
  const int64_t slot = list<int32_t>(a.slots)[i], page_size = a.cell_pos.ne[0];
  if (slot == -1) return;
  if (slot < 0 || slot >= page_size * a.cell_pos.ne[1]) return set_fault(fault, LUCE_FAULT_PAGE);
  const int n_kv = static_cast<int>(a.k.ne[1]), lane = threadIdx.x % kLanes;
  const auto store = [&](const luce_tensor &from, const luce_tensor &pages) {
    const int D = static_cast<int>(pages.ne[0]), pieces = (D + kLanes - 1) / kLanes;
    for (int u = threadIdx.x / kLanes; u < n_kv * pieces; u += kWarps) {
      const int h = u / pieces, k = u % pieces * kLanes;
      const bool is_there = k + lane < D;
      const float x = is_there ? row<const float>(from, h, i)[k + lane] : 0.0f;
      store_cell(pages.type, cell(pages, slot % page_size, h, slot / page_size), k, x, is_there);
    }
  };
  store(a.k, a.k_pages);
  store(a.v, a.v_pages);
  if (threadIdx.x == 0) row<int32_t>(a.cell_pos, slot / page_size)[slot % page_size] = list<int32_t>(a.positions)[i];
}

}  // namespace

LUCE_GLOBAL(row_chain)(const __grid_constant__ RowChain chain, uint32_t *fault) {
  __shared__ float room[kWarps];
  begin();
  const int i = blockIdx.y;
  if (i >= true_rows(chain.n_rows, chain.bound)) return;
  for (int j = 0; j < chain.n_ops; ++j) {
    if (j > 0) __syncthreads();
    const RowOp &op = chain.ops[j];
    const auto columns = [&](const luce_tensor &x) -> Columns {
      const int D = static_cast<int>(x.ne[0]);
      if (chain.part == 0) return {0, D};
      return {static_cast<int>(blockIdx.x) * chain.part, min(D, static_cast<int>(blockIdx.x + 1) * chain.part)};
    };
    switch (op.op) {
      case LUCE_OP_rms_norm:
        do_norm(op.rms_norm, i, room);
        break;
      case LUCE_OP_add:
        do_add(op.add, i, columns(op.add.out));
        break;
      case LUCE_OP_glu:
        do_glu(op.glu, i, columns(op.glu.out));
        break;
      case LUCE_OP_quantize:
        do_quantize(op.quantize, i, columns(op.quantize.x));
        break;
      case LUCE_OP_rope:
        do_rope(op.rope, i);
        break;
      case LUCE_OP_kv_write:
        do_kv_write(op.kv_write, i, fault);
        break;
    }
  }
}

namespace {

// ---- what may be in a chain ----

Verdict check_plain_glu(const luce_glu_args &a) {
  return a.limit == 0 ? check_glu(a) : unsupported("no kernel for a limit");
}

// ---- launching ----

// Adds the call to the chain; false: it is no op of this file, or of other rows.
bool add_to(RowChain &chain, const luce_call &call) {
  RowOp &to = chain.ops[chain.n_ops];
  int64_t bound = 0;
  const int32_t *n_rows = nullptr;
  const auto take = [&](auto &into, auto rows_of) {
    into = *static_cast<const std::remove_reference_t<decltype(into)> *>(call.args);
    n_rows = into.n_rows;
    bound = rows_of(into);
  };
  switch (call.op) {
    case LUCE_OP_rms_norm:
      take(to.rms_norm, [](const auto &a) { return a.x.ne[2]; });
      break;
    case LUCE_OP_add:
      take(to.add, [](const auto &a) { return a.out.ne[1]; });
      break;
    case LUCE_OP_glu:
      take(to.glu, [](const auto &a) { return a.out.ne[1]; });
      break;
    case LUCE_OP_quantize:
      take(to.quantize, [](const auto &a) { return a.x.ne[1]; });
      break;
    case LUCE_OP_rope:
      take(to.rope, [](const auto &a) { return a.x.ne[2]; });
      break;
    case LUCE_OP_kv_write:
      take(to.kv_write, [](const auto &a) { return a.slots.ne[0]; });
      break;
    default:
      return false;
  }
  if (chain.n_ops > 0 && (n_rows != chain.n_rows || bound != chain.bound)) return false;
  chain.n_rows = n_rows;
  chain.bound = static_cast<int32_t>(bound);
  to.op = call.op;
  ++chain.n_ops;
  return true;
}

// Values of a row when no op of the chain joins any across it; else 0.
int64_t width_of(const RowChain &chain) {
  int64_t width = 0;
  for (int j = 0; j < chain.n_ops; ++j) {
    const RowOp &op = chain.ops[j];
    const int64_t D = op.op == LUCE_OP_add        ? op.add.out.ne[0]
                      : op.op == LUCE_OP_glu      ? op.glu.out.ne[0]
                      : op.op == LUCE_OP_quantize ? op.quantize.x.ne[0]
                                                  : 0;
    if (D == 0 || (width != 0 && D != width)) return 0;
    width = D;
  }
  return width;
}

int launch_chain(const luce_call *calls, int n_calls, Launcher &launcher) {
  RowChain chain = {};
  const int most = n_calls < kMostOps ? n_calls : kMostOps;
  while (chain.n_ops < most && !overwrites(calls, chain.n_ops) && add_to(chain, calls[chain.n_ops])) continue;
  const int64_t width = width_of(chain);
  chain.part = width > 0 ? kPart : 0;
  launcher(kernel_row_chain, dim3(width > 0 ? blocks_of(width, kPart) : 1, chain.bound), kThreads, 0, chain);
  return chain.n_ops;
}

}  // namespace
}  // namespace luce

LUCE_OP(rms_norm, check_rms_norm, launch_chain)
LUCE_OP(add, check_add, launch_chain)
LUCE_OP(glu, check_plain_glu, launch_chain)
LUCE_OP(quantize, check_quantize, launch_chain)
LUCE_OP(rope, check_rope, launch_chain)
LUCE_OP(kv_write, check_kv_write, launch_chain)
