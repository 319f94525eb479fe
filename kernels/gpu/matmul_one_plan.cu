// matmul_one_plan.cu: one row times matrices as one launch with what makes the row before it, a norm or a glu and its
// quantisation, and with what meets a gate after it; and how many warps and how much shared memory the launch has.

#include <algorithm>

#include "matmul_some.cuh"
#include "overlap.h"

namespace luce {
namespace {

// The kernel for one row, and what its launch asks for; id -1: a block here has not so much shared memory.
struct OneRowPlan {
  int id, n_teams, n_stages;
  int64_t shared_bytes;
};

// Bytes of shared memory of a stage of all warps of a team, and of a row; stages that a warp goes through for a tile.
struct OneRowSizes {
  int id;
  int64_t stage_bytes, row_bytes;
  int n_stages;
};
OneRowSizes one_row_sizes(int32_t type, int32_t other, int64_t K) {
  constexpr int kWarps = kMatmulThreads / kLanes;
  const int n_packed = blocks_of(blocks_of(K, 256), kWarps),
            n_plain = blocks_of(K * (type == LUCE_F32 ? 4 : 2), kRowStageBytes);
#define LUCE_PAIR(name, type_, also, other_)                                                                  \
  if (type == type_ && other == other_) {                                                                     \
    using Shape = OneRow<type_, other_>;                                                                      \
    return {kernel_matmul_##name##_##also, kWarps * (Shape::group_bytes + 8), Shape::row_bytes(K), n_packed}; \
  }
  LUCE_PAIRS(LUCE_PAIR)
#undef LUCE_PAIR
  switch (type) {
#define LUCE_CASE(name, type) \
  case type:                  \
    return {kernel_matmul_##name##_0, kWarps * (OneRow<type>::group_bytes + 8), OneRow<type>::row_bytes(K), n_packed};
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return {row_kernel(type), kWarps * 2 * (kRowStageBytes + 8), 4 * K, n_plain};
  }
}

constexpr int64_t kStaticBytes = 8 << 10;

// As many teams as there are tiles for each multiprocessor, and as many stages as fit and are of use.
OneRowPlan plan_one_row(const MatmulArgs &a, const Launcher &launcher) {
  constexpr int64_t kMostStages = 8;
  const OneRowSizes sizes = one_row_sizes(a.type, a.other, a.K);
  const int64_t room = launcher.most_shared - kStaticBytes - sizes.row_bytes;
  const int n_wanted = blocks_of(a.n_tiles(), launcher.n_multiprocessors);
  const bool is_in_sets = a.gated.is_there() && !is_float(a.type);  // whole numbers of tiles of which a team makes
  for (int n_teams = kMostTeams; n_teams > 0; --n_teams) {
    if (is_in_sets ? 2 * kSide % n_teams != 0 : n_teams > std::max(n_wanted, 1)) continue;
    const int64_t n_of_use = blocks_of(n_wanted, n_teams) * sizes.n_stages;
    const int64_t n_stages = std::min({n_of_use, room / (n_teams * sizes.stage_bytes), kMostStages});
    if (n_stages < std::min<int64_t>(n_of_use, n_teams > 1 ? 2 : 1)) continue;
    return {sizes.id, n_teams, static_cast<int>(n_stages), n_teams * n_stages * sizes.stage_bytes + sizes.row_bytes};
  }
  return {-1, 0, 0, 0};
}

// ---- the row and what makes it ----

// The ops that make a row, and the tensor that it becomes.
struct Making {
  RowSource source = no_source();
  int n_ops = 0;
  const luce_tensor *row = nullptr;
  const int32_t *n_rows = nullptr;

  // With an op that makes floats.
  void begin(const luce_tensor &out, const int32_t *rows) {
    source.made = static_cast<float *>(out.data);
    row = &out;
    n_rows = rows;
    n_ops = 1;
  }
};

bool is_row(const luce_rms_norm_args &a) {
  return a.x.ne[1] == 1 && a.x.ne[2] == 1;
}

// A norm, what adds it to another row, and the norm of the sum: what comes before the last of them.
bool read_added(const luce_call *calls, int n_calls, AddedNorm &to, const float *&x) {
  if (n_calls < 3 || calls[0].op != LUCE_OP_rms_norm || calls[1].op != LUCE_OP_add || calls[2].op != LUCE_OP_rms_norm) {
    return false;
  }
  const auto &norm = *static_cast<const luce_rms_norm_args *>(calls[0].args);
  const auto &add = *static_cast<const luce_add_args *>(calls[1].args);
  const auto &last = *static_cast<const luce_rms_norm_args *>(calls[2].args);
  const bool is_second = add.b.data == norm.out.data;
  if (!is_row(norm) || !is_row(last) || norm.weight.data == nullptr || add.out.ne[1] != 1 ||
      (!is_second && add.a.data != norm.out.data) || add.a.data == add.b.data || last.x.data != add.out.data ||
      add.out.ne[0] != norm.x.ne[0] || last.x.ne[0] != norm.x.ne[0] || norm.n_rows != add.n_rows ||
      add.n_rows != last.n_rows) {
    return false;
  }
  x = static_cast<const float *>(norm.x.data);
  to = {static_cast<const float *>(norm.weight.data), static_cast<const float *>((is_second ? add.a : add.b).data),
        norm.eps, static_cast<float *>(norm.out.data), static_cast<float *>(add.out.data)};
  return true;
}

Making read_making(const luce_call *calls, int n_calls) {
  Making m;
  const float *x = nullptr;
  const int n_before = read_added(calls, n_calls, m.source.before, x) ? 2 : 0;
  calls += n_before, n_calls -= n_before;
  if (calls->op == LUCE_OP_rms_norm) {
    const auto &a = *static_cast<const luce_rms_norm_args *>(calls->args);
    if (!is_row(a)) return m;
    m.source.x = x ? x : static_cast<const float *>(a.x.data);
    m.source.weight = static_cast<const float *>(a.weight.data);
    m.source.eps = a.eps;
    m.begin(a.out, a.n_rows);
  } else if (calls->op == LUCE_OP_glu) {
    const auto &a = *static_cast<const luce_glu_args *>(calls->args);
    if (a.out.ne[1] != 1) return m;
    m.source.x = static_cast<const float *>(a.gate.data);
    m.source.up = static_cast<const float *>(a.up.data);
    m.source.activation = a.activation;
    m.begin(a.out, a.n_rows);
  }
  if (n_calls > m.n_ops && calls[m.n_ops].op == LUCE_OP_quantize) {
    const auto &a = *static_cast<const luce_quantize_args *>(calls[m.n_ops].args);
    const bool is_next = a.x.data == (m.row ? m.row->data : nullptr) && a.n_rows == m.n_rows;
    if (a.x.ne[1] == 1 && (m.n_ops == 0 || (is_next && a.x.ne[0] == m.row->ne[0]))) {
      if (m.n_ops == 0) m.source.x = static_cast<const float *>(a.x.data), m.n_rows = a.n_rows;
      m.source.quantized = static_cast<uint8_t *>(a.out.data);
      m.row = &a.out;
      ++m.n_ops;
    }
  }
  if (m.n_ops > 0) m.n_ops += n_before;
  return m;
}

// The memory of a row of K values, or of a quantised one.
Span floats_of(const float *p, int64_t K) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + static_cast<uintptr_t>(p ? 4 * K : 0), 4 * K, LUCE_F32};
}
Span bytes_of(const uint8_t *p, int64_t K) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + static_cast<uintptr_t>(p ? K / 4 * 5 : 0), K / 4 * 5, LUCE_Q8_A};
}

}  // namespace

bool fits_one_row(const luce_matmul_args &a, const Launcher &launcher) {
  if (a.x.ne[1] != 1 || (is_float(a.weight.type) && !is_one_wide_row(a))) return false;
  const OneRowSizes sizes = one_row_sizes(a.weight.type, a.weight.type, a.x.ne[0]);
  return kStaticBytes + sizes.row_bytes + sizes.stage_bytes <= launcher.most_shared;
}

MatmulArgs join_row(const luce_call *matmuls, int n_calls, const Launcher &launcher) {
  // Behind the last values of K a ring has what was there before. Of another type that could be scales that are no
  // numbers: so a warp that comes to an end within 256 values has no whole groups too.
  const int64_t K = static_cast<const luce_matmul_args *>(matmuls->args)->x.ne[0], most = 256 * kMatmulThreads / kLanes;
  const MatmulArgs all = join_matmuls(matmuls, n_calls, K % 256 == 0 || K <= most);
  return plan_one_row(all, launcher).id >= 0 ? all : join_matmuls(matmuls, n_calls, false);
}

// Takes on a glu of the two parts, and its quantisation where the weights are quantised: how many of the calls after
// the matmuls these are. What a block writes then nobody may still read, and where it goes nobody wants what was there.
int add_gate(MatmulArgs &to, const luce_call *matmuls, int n_calls) {
  if (to.n_parts != 2 || to.n_of_type != 2 || n_calls < 3 || matmuls[2].op != LUCE_OP_glu) return 0;
  const auto &gate = *static_cast<const luce_matmul_args *>(matmuls[0].args);
  const auto &up = *static_cast<const luce_matmul_args *>(matmuls[1].args);
  const auto &glu = *static_cast<const luce_glu_args *>(matmuls[2].args);
  const bool is_packed = !is_float(gate.weight.type);
  const int64_t N = gate.weight.ne[1];
  if (glu.gate.data != gate.out.data || glu.up.data != up.out.data || glu.n_rows != to.n_rows || N != up.weight.ne[1] ||
      glu.out.ne[0] != N || glu.out.ne[1] != 1 || (is_packed && N % 32 != 0)) {
    return 0;
  }
  Gated gated = {static_cast<float *>(glu.out.data), nullptr, glu.activation};
  int n_ops = 1;
  if (is_packed && n_calls > 3 && matmuls[3].op == LUCE_OP_quantize) {
    const auto &a = *static_cast<const luce_quantize_args *>(matmuls[3].args);
    if (a.x.data == glu.out.data && a.x.ne[0] == N && a.x.ne[1] == 1 && a.n_rows == to.n_rows) {
      gated.quantized = static_cast<uint8_t *>(a.out.data);
      ++n_ops;
    }
  }
  const Span made = floats_of(gated.made, N), quantized = bytes_of(gated.quantized, N);
  const auto is_written = [&](const Span &s) { return s.meets(made) || s.meets(quantized); };
  const RowSource &s = to.source;
  for (const Span &kept :
       {span_of(gate.add, 1), span_of(up.add, 1), floats_of(s.x, to.K), floats_of(s.up, to.K),
        floats_of(s.before.residual, to.K), floats_of(s.before.sum, to.K), s.x ? Span{} : span_of(gate.x, 1)}) {
    if (is_written(kept)) return 0;
  }
  if (is_written(floats_of(s.made, to.K))) to.source.made = nullptr;
  if (is_written(bytes_of(s.quantized, to.K))) to.source.quantized = nullptr;
  for (int p = 0; p < 2; ++p) {
    if (is_written(floats_of(to.parts[p].out, N))) to.parts[p].out = nullptr;
  }
  if (made.meets(quantized)) gated.made = nullptr;
  to.gated = gated;
  return n_ops;
}

int plan_sourced(const luce_call *calls, int n_calls, const Launcher &launcher, MatmulArgs &to) {
  Making m = read_making(calls, n_calls);
  if (m.n_ops == 0 || n_calls <= m.n_ops || calls[m.n_ops].op != LUCE_OP_matmul) return 0;
  const luce_call *matmuls = calls + m.n_ops;
  const luce_matmul_args &first = *static_cast<const luce_matmul_args *>(matmuls->args);
  const int64_t K = first.x.ne[0];
  if (K > kMostMade || first.x.data != m.row->data || K != m.row->ne[0] || first.x.ne[1] != 1 ||
      first.n_rows != m.n_rows)
    return 0;
  if (!fits_one_row(first, launcher)) return 0;
  const AddedNorm &before = m.source.before;
  for (const float *p :
       {m.source.x, m.source.up, m.source.weight, static_cast<const float *>(m.source.made), before.weight,
        before.residual, static_cast<const float *>(before.normed), static_cast<const float *>(before.sum)}) {
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return 0;
  }
  // Every block reads what the row is made from, while others write.
  const Span from[] = {floats_of(m.source.x, K), floats_of(m.source.up, K), floats_of(before.residual, K)};
  const Span normed = floats_of(before.normed, K), sum = floats_of(before.sum, K);
  const auto is_read = [&](const Span &s) { return s.meets(from[0]) || s.meets(from[1]) || s.meets(from[2]); };
  if (is_read(floats_of(m.source.made, K)) || is_read(bytes_of(m.source.quantized, K)) || is_read(normed) ||
      is_read(sum) || normed.meets(sum)) {
    return 0;
  }
  for (const Span &own : {floats_of(m.source.made, K), bytes_of(m.source.quantized, K)}) {
    if (own.meets(normed) || own.meets(sum)) return 0;
  }
  to = join_row(matmuls, n_calls - m.n_ops, launcher);
  for (int p = 0; p < to.n_parts; ++p) {
    const luce_matmul_args &a = *static_cast<const luce_matmul_args *>(matmuls[p].args);
    const Span out = span_of(a.out, 1), add = span_of(a.add, 1);
    const Span made = floats_of(m.source.made, K), quantized = bytes_of(m.source.quantized, K);
    if (is_read(out) || add.meets(made) || add.meets(quantized)) return 0;
    if (before.residual && (out.meets(sum) || out.meets(normed) || add.meets(sum) || add.meets(normed))) return 0;
    // Where an output goes, nobody wants what was there.
    if (out.meets(made)) m.source.made = nullptr;
    if (out.meets(quantized)) m.source.quantized = nullptr;
  }
  to.source = m.source;
  return m.n_ops + to.n_parts + add_gate(to, matmuls, n_calls - m.n_ops);
}

void launch_matmul(const MatmulArgs &all, Launcher &launcher) {
  const OneRowPlan plan = plan_one_row(all, launcher);
  if (all.bound != 1 || plan.id < 0) return launch_some(all.type, all, launcher);
  const int set = all.gated.is_there() && !is_float(all.type) ? 2 * kSide : 1;
  MatmulArgs args = all;
  args.n_teams = plan.n_teams, args.n_stages = plan.n_stages;
  const int n_makers = all.source.before.residual ? blocks_of(all.K, 4 * kMatmulThreads) : 1;
  launcher(plan.id, dim3(std::min(all.n_tiles() / set, launcher.n_multiprocessors)),
           std::max(plan.n_teams, n_makers) * kMatmulThreads, plan.shared_bytes, args);
}

}  // namespace luce
