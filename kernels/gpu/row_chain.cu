// row_chain.cu: ops whose row i needs row i alone (row_ops.cuh). Such ops that follow each other are one launch, in
// which a block does one row, op after op: a launch costs about a microsecond, an op within one a fraction of that.
// Those that make the one row that a luce_matmul meets are a part of its launch instead.
//
// Where no op of a chain joins values across its row (add, glu, quantize), a block has 1024 values; where none joins
// heads (norms of heads, rope, kv_write), the heads that belong to one KV head. The order of a sum depends on D alone,
// so a chain has the bits of its ops run apart.

#include "matmul.cuh"
#include "ops.h"
#include "overlap.h"
#include "row_ops.cuh"

namespace luce {

// Norms have their weights in the cache by the time that rows are there.
LUCE_DEVICE void ask_for_weights(const RowChain &chain) {
#pragma unroll 1
  for (int j = 0; j < chain.n_ops; ++j) {
    const RowOp &op = chain.ops[j];
    if (op.op != LUCE_OP_rms_norm || op.y.data == nullptr) continue;
#pragma unroll 1
    for (int line = threadIdx.x * kLineBytes; line < 4 * op.y.D; line += kRowBlock * kLineBytes) {
      prefetch(op.y.data + line);
    }
  }
}

LUCE_GLOBAL_WITHIN(row_chain, kRowBlock, 4)(const __grid_constant__ RowChain chain, uint32_t *fault) {
  __shared__ float room[kMostPieces];
  ask_for_weights(chain);
  begin();
  const int i = blockIdx.y, part = static_cast<int>(blockIdx.x), slot = chain.kv.slots ? chain.kv.slots[i] : -1;
  if (i >= true_rows(chain.n_rows, chain.bound)) return;
  for (int j = 0; j < chain.n_ops; ++j) {
    if (j > 0) __syncthreads();
    const RowOp &op = chain.ops[j];
    Range columns = {0, op.x.D}, heads = {0, op.x.H};
    if (chain.part > 0) columns = {part * chain.part, min(op.x.D, (part + 1) * chain.part)};
    if (chain.n_heads > 0) heads = {part * (op.x.H / chain.n_heads), (part + 1) * (op.x.H / chain.n_heads)};
    switch (op.op) {
      case LUCE_OP_rms_norm:
        do_norm(op, i, heads, room);
        break;
      case LUCE_OP_add:
        do_add(op, i, columns);
        break;
      case LUCE_OP_glu:
        do_glu(op, i, columns);
        break;
      case LUCE_OP_quantize:
        do_quantize(op, i, columns);
        break;
      case LUCE_OP_rope:
        do_rope(op, i, heads);
        break;
      case LUCE_OP_kv_write:
        do_kv_write(op, chain.kv, i, slot, heads, fault);
        break;
    }
  }
}

namespace {

Verdict check_plain_glu(const luce_glu_args &a) {
  return a.limit == 0 ? check_glu(a) : unsupported("no kernel for a limit");
}

// [D, n]
Vectors rows_of(const luce_tensor &t) {
  return {static_cast<char *>(t.data), t.nb[1], 0, static_cast<int32_t>(t.ne[0]), 1};
}
// [D, H, n]
Vectors heads_of(const luce_tensor &t) {
  return {static_cast<char *>(t.data), t.nb[2], static_cast<int32_t>(t.nb[1]), static_cast<int32_t>(t.ne[0]),
          static_cast<int32_t>(t.ne[1])};
}
Pages pages_of(const luce_tensor &t) {
  return {static_cast<uint8_t *>(t.data), t.nb[3], static_cast<int32_t>(t.nb[1]),
          static_cast<int32_t>(t.nb[2]),  t.type,  static_cast<int32_t>(t.ne[0])};
}

// Whether the op puts down codes of what it makes by itself, when they are wanted next.
bool makes_codes(const RowOp &op) {
  const bool is_row_norm = op.op == LUCE_OP_rms_norm && op.x.H == 1 && op.x.D > kShortest && op.x.D <= kMostMade;
  return op.codes.data == nullptr && (op.op == LUCE_OP_glu || is_row_norm);
}

// Adds the call to the chain; false: it is no op of this file, or of other rows.
bool add_to(RowChain &chain, const luce_call &call) {
  RowOp to = {call.op, 0, 0, {}, {}, {}, {}};
  KvWrite kv = chain.kv;
  int64_t bound = 0;
  const int32_t *n_rows = nullptr;
  const auto args = [&]<class Args>(const Args *) -> const Args & {
    const Args &a = *static_cast<const Args *>(call.args);
    n_rows = a.n_rows;
    return a;
  };
  switch (call.op) {
    case LUCE_OP_rms_norm: {
      const auto &a = args(static_cast<const luce_rms_norm_args *>(nullptr));
      to.x = heads_of(a.x), to.y = rows_of(a.weight), to.out = heads_of(a.out), to.eps = a.eps;
      bound = a.x.ne[2];
      break;
    }
    case LUCE_OP_add: {
      const auto &a = args(static_cast<const luce_add_args *>(nullptr));
      to.x = rows_of(a.a), to.y = rows_of(a.b), to.out = rows_of(a.out);
      bound = a.out.ne[1];
      break;
    }
    case LUCE_OP_glu: {
      const auto &a = args(static_cast<const luce_glu_args *>(nullptr));
      to.x = rows_of(a.gate), to.y = rows_of(a.up), to.out = rows_of(a.out), to.mode = a.activation;
      bound = a.out.ne[1];
      break;
    }
    case LUCE_OP_quantize: {
      const auto &a = args(static_cast<const luce_quantize_args *>(nullptr));
      to.x = rows_of(a.x), to.out = rows_of(a.out);
      bound = a.x.ne[1];
      break;
    }
    case LUCE_OP_rope: {
      const auto &a = args(static_cast<const luce_rope_args *>(nullptr));
      to.x = heads_of(a.x), to.y = rows_of(a.angles), to.out = heads_of(a.out), to.mode = a.mode;
      bound = a.x.ne[2];
      break;
    }
    case LUCE_OP_kv_write: {
      const auto &a = args(static_cast<const luce_kv_write_args *>(nullptr));
      to.x = heads_of(a.k), to.y = heads_of(a.v);
      kv = {pages_of(a.k_pages),
            pages_of(a.v_pages),
            static_cast<const int32_t *>(a.slots.data),
            static_cast<const int32_t *>(a.positions.data),
            static_cast<int32_t *>(a.cell_pos.data),
            static_cast<int32_t>(a.cell_pos.nb[1]),
            static_cast<int32_t>(a.cell_pos.ne[0]),
            static_cast<int32_t>(a.cell_pos.ne[1])};
      if (chain.kv.slots != nullptr) return false;
      bound = a.slots.ne[0];
      break;
    }
    default:
      return false;
  }
  if (chain.n_ops > 0 && (n_rows != chain.n_rows || bound != chain.bound)) return false;
  chain.n_rows = n_rows;
  chain.bound = static_cast<int32_t>(bound);
  chain.kv = kv;
  if (call.op == LUCE_OP_quantize && chain.n_ops > 0) {
    RowOp &before = chain.ops[chain.n_ops - 1];
    if (makes_codes(before) && before.out.data == to.x.data && before.out.row == to.x.row && before.out.D == to.x.D) {
      before.codes = to.out;
      before.codes.D = to.x.D;
      return true;
    }
  }
  chain.ops[chain.n_ops++] = to;
  return true;
}

// Values of a row when no op of the chain joins any across it; else 0.
int width_of(const RowChain &chain) {
  const int width = chain.ops[0].x.D;
  for (int j = 0; j < chain.n_ops; ++j) {
    const RowOp &op = chain.ops[j];
    const bool joins = op.op != LUCE_OP_add && op.op != LUCE_OP_glu && op.op != LUCE_OP_quantize;
    if (joins || op.x.D != width) return 0;
  }
  return width;
}

// KV heads of a row when no op of the chain joins any, and each has a whole number of heads for one of them; else 0.
int kv_heads_of(const RowChain &chain) {
  const RowOp &last = chain.ops[chain.n_ops - 1];
  if (last.op != LUCE_OP_kv_write) return 0;
  for (int j = 0; j < chain.n_ops; ++j) {
    const RowOp &op = chain.ops[j];
    const bool is_of_heads =
        op.op == LUCE_OP_kv_write || op.op == LUCE_OP_rope || (op.op == LUCE_OP_rms_norm && op.x.D <= kShortest);
    if (!is_of_heads || op.x.H % last.x.H != 0) return 0;
  }
  return last.x.H;
}

int launch_chain(const luce_call *calls, int n_calls, Launcher &launcher) {
  MatmulArgs matmul;
  if (const int n_done = plan_sourced(calls, n_calls, launcher, matmul)) {
    launch_matmul(matmul, launcher);
    return n_done;
  }
  RowChain chain = {};
  int n = 0;
  for (; n < n_calls && chain.n_ops < kMostOps && !overwrites(calls, n); ++n) {
    if (n > 0 && plan_sourced(calls + n, n_calls - n, launcher, matmul)) break;
    if (!add_to(chain, calls[n])) break;
  }
  const int width = width_of(chain);
  chain.part = width > 0 ? kRowStep : 0;
  chain.n_heads = kv_heads_of(chain);
  const unsigned n_blocks = width > 0 ? blocks_of(width, kRowStep) : chain.n_heads > 0 ? chain.n_heads : 1;
  launcher(kernel_row_chain, dim3(n_blocks, chain.bound), kRowBlock, 0, chain);
  return n;
}

}  // namespace
}  // namespace luce

LUCE_OP(rms_norm, check_rms_norm, launch_chain)
LUCE_OP(add, check_add, launch_chain)
LUCE_OP(glu, check_plain_glu, launch_chain)
LUCE_OP(quantize, check_quantize, launch_chain)
LUCE_OP(rope, check_rope, launch_chain)
LUCE_OP(kv_write, check_kv_write, launch_chain)
