// ops.h: the types and shapes that luce.h gives the arguments of an op, looked at. What only one library asks (a size
// that fits its chip, a weight type that it has) stands in its own check, beside the kernel.
#pragma once

#include "check.h"

namespace luce {

inline Verdict check_quantize(const luce_quantize_args &a) {
  if (a.x.type != LUCE_F32 || a.out.type != LUCE_Q8_A) return unsupported("x is F32, out is Q8_A");
  if (a.x.nb[0] != 4) return unsupported("rows of x are contiguous");
  if (a.x.ne[0] % 32 != 0) return unsupported("K is a multiple of 32");
  if (a.x.ne[0] != a.out.ne[0] || a.x.ne[1] != a.out.ne[1]) return bad("x and out have one shape");
  return {};
}

inline Verdict check_rows_of_heads(const luce_tensor &x, const luce_tensor &out) {
  if (!is_f32(x) || !is_f32(out)) return unsupported("x and out are F32, contiguous along D");
  return same_shape(x, out) ? Verdict{} : bad("x and out have one shape");
}

inline Verdict check_norm_weight(const luce_tensor &weight, int64_t D) {
  if (!is_f32(weight)) return unsupported("weight is F32");
  return weight.ne[0] == D ? Verdict{} : bad("weight has D values");
}

inline Verdict check_rms_norm(const luce_rms_norm_args &a) {
  const Verdict verdict = check_rows_of_heads(a.x, a.out);
  if (verdict.status != LUCE_OK || a.weight.data == nullptr) return verdict;
  return check_norm_weight(a.weight, a.x.ne[0]);
}

inline Verdict check_shapes(const luce_tensor &a, const luce_tensor &b, const luce_tensor &out) {
  if (!is_f32(a) || !is_f32(b) || !is_f32(out)) return unsupported("all tensors are F32, contiguous along ne[0]");
  return same_shape(a, out) && same_shape(b, out) ? Verdict{} : bad("all tensors have one shape");
}

inline Verdict check_add(const luce_add_args &a) {
  return check_shapes(a.a, a.b, a.out);
}

inline Verdict check_glu(const luce_glu_args &a) {
  if (a.activation != LUCE_SILU && a.activation != LUCE_GELU_TANH)
    return unsupported("activation is SILU or GELU_TANH");
  return check_shapes(a.gate, a.up, a.out);
}

inline Verdict check_softcap(const luce_softcap_args &a) {
  if (!(a.cap > 0)) return bad("cap is positive");
  return check_shapes(a.x, a.x, a.out);
}

inline Verdict check_rope_angles(const luce_rope_angles_args &a) {
  if (!is_i32(a.positions) || !is_f32(a.frequencies) || !is_f32(a.out)) {
    return unsupported("positions are I32, frequencies and out F32, contiguous along ne[0]");
  }
  if (a.out.ne[0] != 2 * a.frequencies.ne[0]) return bad("out has two values for each frequency");
  return a.out.ne[1] == a.positions.ne[0] ? Verdict{} : bad("out has a row for each position");
}

inline Verdict check_rope(const luce_rope_args &a) {
  if (!is_f32(a.x) || !is_f32(a.angles) || !is_f32(a.out)) return unsupported("all tensors are F32, contiguous in D");
  if (a.mode != LUCE_ROPE_NORM && a.mode != LUCE_ROPE_NEOX) return unsupported("mode is NORM or NEOX");
  if (!same_shape(a.x, a.out)) return bad("x and out have one shape");
  if (a.angles.ne[0] > a.x.ne[0] || a.angles.ne[0] % 2 != 0) return bad("n_rot is even and at most D");
  return a.angles.ne[1] == a.x.ne[2] ? Verdict{} : bad("angles have a row for each row of x");
}

inline Verdict check_pages(const luce_tensor &k_pages, const luce_tensor &v_pages, const luce_tensor &cell_pos) {
  for (const luce_tensor *pages : {&k_pages, &v_pages}) {
    if (!is_cache_type(*pages)) return unsupported("pages are F32, F16, BF16, Q8_0 or Q4_0 (D a multiple of 32)");
    if (pages->ne[1] != cell_pos.ne[0] || pages->ne[3] != cell_pos.ne[1]) return bad("pages and cell_pos differ");
  }
  if (!is_i32(cell_pos)) return unsupported("cell_pos is I32");
  return k_pages.ne[2] == v_pages.ne[2] ? Verdict{} : bad("k_pages and v_pages have one number of heads");
}

inline Verdict check_kv_write(const luce_kv_write_args &a) {
  if (!is_f32(a.k) || !is_f32(a.v)) return unsupported("k and v are F32, contiguous along D");
  if (!is_i32(a.slots) || !is_i32(a.positions)) return unsupported("slots and positions are I32");
  const int64_t n = a.slots.ne[0];
  if (a.k.ne[2] != n || a.v.ne[2] != n || a.positions.ne[0] != n) return bad("k, v, slots, positions have n rows");
  if (a.k.ne[0] != a.k_pages.ne[0] || a.v.ne[0] != a.v_pages.ne[0]) return bad("heads and pages have one D");
  if (a.k.ne[1] != a.k_pages.ne[2] || a.v.ne[1] != a.k.ne[1]) return bad("k, v and pages have one number of heads");
  return check_pages(a.k_pages, a.v_pages, a.cell_pos);
}

inline Verdict check_kv_copy(const luce_kv_copy_args &a) {
  if (!is_i32(a.copies)) return unsupported("copies are I32");
  if (a.copies.ne[0] != 3) return bad("a copy is src, dst, n_cells");
  return check_pages(a.k_pages, a.v_pages, a.cell_pos);
}

inline Verdict check_attention(const luce_attention_args &a) {
  if (!is_f32(a.q) || !is_f32(a.out)) return unsupported("q and out are F32, contiguous along D");
  if (!is_cache_type(a.k_pages) || !is_cache_type(a.v_pages)) {
    return unsupported("pages are F32, F16, BF16, Q8_0 or Q4_0 (D a multiple of 32)");
  }
  if (!is_i32(a.cell_pos) || !is_i32(a.page_table) || !is_i32(a.row_seq) || !is_i32(a.row_pos) || !is_i32(a.row_cell)) {
    return unsupported("cell_pos, page_table, row_seq, row_pos and row_cell are I32");
  }
  const int64_t n = a.q.ne[2], H = a.q.ne[1], n_kv = a.k_pages.ne[2];
  if (a.q.ne[0] != a.k_pages.ne[0] || a.out.ne[0] != a.v_pages.ne[0]) return bad("q has D values, out Dv");
  if (a.out.ne[1] != H || a.out.ne[2] != n) return bad("q and out have one number of heads and of rows");
  if (a.row_seq.ne[0] != n || a.row_pos.ne[0] != n || a.row_cell.ne[0] != n) return bad("row_* have n values");
  if (H % n_kv != 0 || a.v_pages.ne[2] != n_kv) return bad("H is a multiple of n_kv, which k_pages and v_pages share");
  for (const luce_tensor *pages : {&a.k_pages, &a.v_pages}) {
    if (pages->ne[1] != a.cell_pos.ne[0] || pages->ne[3] != a.cell_pos.ne[1]) return bad("pages and cell_pos differ");
  }
  if (a.parents.data != nullptr) {
    if (!is_i32(a.parents) || !is_i32(a.seq_past)) return unsupported("parents and seq_past are I32");
    if (a.parents.ne[0] != n || a.seq_past.ne[0] != a.page_table.ne[1]) return bad("n parents, n_seqs seq_past");
  }
  if (a.cells.data != nullptr && (!is_i32(a.cells) || a.cells.ne[1] != n)) return bad("cells are I32 [k, n]");
  if (a.lse.data != nullptr && (!is_f32(a.lse) || a.lse.ne[0] != H || a.lse.ne[1] != n))
    return bad("lse is F32 [H, n]");
  if (a.sinks.data != nullptr && (!is_f32(a.sinks) || a.sinks.ne[0] != H)) return bad("sinks are F32 [H]");
  return {};
}

inline Verdict check_rows(const luce_rows_args &a) {
  if (!is_f32(a.x) || !is_i32(a.index) || !is_f32(a.out)) return unsupported("x and out are F32, index is I32");
  if (a.x.ne[0] != a.out.ne[0]) return bad("x and out have rows of one length");
  return a.out.ne[1] == a.index.ne[0] ? Verdict{} : bad("out has a row for each index");
}

inline Verdict check_count(const luce_count_args &a) {
  if (!is_i32(a.counts) || !is_i32(a.slots) || !is_i32(a.tokens) || !is_i32(a.amount))
    return unsupported("all are I32");
  const int64_t n = a.tokens.ne[0];
  return a.slots.ne[0] == n && a.amount.ne[0] == n ? Verdict{} : bad("slots, tokens and amount have n values");
}

inline Verdict check_sample(const luce_sample_args &a) {
  if (!is_f32(a.logits) || !is_i32(a.token) || !is_f32(a.logprob)) return unsupported("logits, logprob F32, token I32");
  if (!is_array_of<luce_sample_row>(a.rows)) return unsupported("rows are luce_sample_row, as U8 with nb[0] = 80");
  const int64_t V = a.logits.ne[0], m = a.logits.ne[1];
  if (a.rows.ne[0] != m || a.token.ne[0] != m || a.logprob.ne[0] != m)
    return bad("rows, token and logprob have m values");
  if (a.counts.data && (!is_i32(a.counts) || a.counts.ne[0] != V)) return bad("counts are I32 [V, n_slots]");
  if (a.masks.data && (!is_i32(a.masks) || a.masks.ne[0] != (V + 31) / 32)) return bad("masks are I32 [(V + 31) / 32]");
  if (a.bias_ids.data && (!is_i32(a.bias_ids) || !is_f32(a.bias_values) || a.bias_ids.ne[0] != a.bias_values.ne[0])) {
    return bad("bias_ids are I32 [n_bias], bias_values F32 [n_bias]");
  }
  if (a.top_ids.data) {
    if (!is_i32(a.top_ids) || !is_f32(a.top_logprobs)) return unsupported("top_ids are I32, top_logprobs F32");
    if (a.top_ids.ne[1] != m || !same_shape(a.top_ids, a.top_logprobs)) return bad("top_* are [n_top, m]");
  }
  return {};
}

inline Verdict check_advance(const luce_advance_args &a) {
  if (!is_i32(a.token) || !is_i32(a.slots) || !is_i32(a.stop_ids) || !is_i32(a.forced) || !is_i32(a.emitted)) {
    return unsupported("all but state are I32");
  }
  if (!is_array_of<luce_row_state>(a.state)) return unsupported("state is luce_row_state, as U8 with nb[0] = 24");
  const int64_t m = a.token.ne[0], n_slots = a.state.ne[0];
  if (a.slots.ne[0] != m || a.emitted.ne[0] != m) return bad("token, slots and emitted have m values");
  return a.stop_ids.ne[1] == n_slots && a.forced.ne[1] == n_slots ? Verdict{}
                                                                  : bad("stop_ids and forced have a row for each slot");
}

inline Verdict check_mailbox(const luce_mailbox_args &a) {
  if (!is_i32(a.box)) return unsupported("box is I32");
  if (!(a.timeout_s > 0)) return bad("timeout_s is positive");
  return a.box.ne[0] == 2 ? Verdict{} : bad("box is asked, answered");
}

}  // namespace luce
