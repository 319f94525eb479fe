// attention_row.cu: attention of one row and what prepares it as one launch (attention_row.cuh), and which calls it is.

#include <algorithm>

#include "attention_row.cuh"

namespace luce {
namespace {

constexpr int64_t kStaticBytes = 5 << 10;  // of shared memory, beside what is asked for

template <class Args>
const Args &args_of(const luce_call &call) {
  return *static_cast<const Args *>(call.args);
}
template <class T>
T *data_of(const luce_tensor &t) {
  return static_cast<T *>(t.data);
}

// The memory of a tensor of one row.
struct Bytes {
  uintptr_t begin, end;

  explicit Bytes(const luce_tensor &t)
      : begin(reinterpret_cast<uintptr_t>(t.data)), end(begin + static_cast<uintptr_t>(t.ne[1] * t.nb[1])) {}
  bool meets(const Bytes &other) const { return begin < other.end && other.begin < end; }
};

// Heads of one row on their way through a norm and rope.
struct Heads {
  const luce_tensor *from;
  const float *norm = nullptr;
  float eps = -1;
  const luce_rope_args *rope = nullptr;
};

// Whether the call makes what `heads` come from; they come from what it reads then.
bool reach(const luce_call &call, Heads &heads, const int32_t *n_rows) {
  const auto is_same = [](const luce_tensor &a, const luce_tensor &b) {
    return a.data == b.data && a.ne[0] == b.ne[0] && a.ne[1] == b.ne[1] && a.ne[2] == 1 && a.nb[1] == b.nb[1];
  };
  if (call.op == LUCE_OP_rope) {
    const auto &a = args_of<luce_rope_args>(call);
    if (heads.rope || heads.norm || a.n_rows != n_rows || !is_same(a.out, *heads.from)) return false;
    heads.rope = &a;
    heads.from = &a.x;
    return true;
  }
  const auto &a = args_of<luce_rms_norm_args>(call);
  if (heads.eps >= 0 || a.n_rows != n_rows || !is_same(a.out, *heads.from)) return false;
  heads.norm = data_of<float>(a.weight);
  heads.eps = a.eps;
  heads.from = &a.x;
  return true;
}

// The calls as one: how many they are, and s; 0: they do not begin so.
int plan(const luce_call *calls, int n_calls, int64_t most_shared, RowAttention &s) {
  constexpr int kMostBefore = 4;
  int n = 0;
  while (n < n_calls && n <= kMostBefore && (calls[n].op == LUCE_OP_rms_norm || calls[n].op == LUCE_OP_rope)) ++n;
  if (n + 2 > n_calls || calls[n].op != LUCE_OP_kv_write || calls[n + 1].op != LUCE_OP_attention) return 0;
  const auto &w = args_of<luce_kv_write_args>(calls[n]);
  const auto &a = args_of<luce_attention_args>(calls[n + 1]);
  if (pages_kernel(a, most_shared).id < 0 || a.q.ne[2] != 1 || a.parents.data || w.n_rows != a.n_rows) return 0;
  if (w.k_pages.data != a.k_pages.data || w.v_pages.data != a.v_pages.data || w.cell_pos.data != a.cell_pos.data) {
    return 0;
  }
  Heads q = {&a.q}, k = {&w.k};
  int n_left = n;
  for (int i = n - 1; i >= 0; --i) n_left -= reach(calls[i], q, a.n_rows) || reach(calls[i], k, a.n_rows);
  if (n_left > 0 ||
      (q.rope && k.rope && (q.rope->angles.data != k.rope->angles.data || q.rope->mode != k.rope->mode)) ||
      !q.rope != !k.rope) {
    return 0;
  }
  const luce_rope_args *rope = q.rope;
  s = {};
  s.a = flat_attention(a, nullptr);
  s.a.q = data_of<float>(*q.from), s.a.q_head = static_cast<int32_t>(q.from->nb[1]);
  s.k = data_of<float>(*k.from), s.k_row_head = static_cast<int32_t>(k.from->nb[1]);
  s.v = data_of<float>(w.v), s.v_row_head = static_cast<int32_t>(w.v.nb[1]);
  s.q_norm = q.norm, s.q_eps = q.eps, s.k_norm = k.norm, s.k_eps = k.eps;
  s.slots = data_of<int32_t>(w.slots), s.positions = data_of<int32_t>(w.positions);
  s.k_cells = data_of<uint8_t>(w.k_pages), s.v_cells = data_of<uint8_t>(w.v_pages);
  s.cell_positions = data_of<int32_t>(w.cell_pos);
  if (rope) {
    s.angles = data_of<float>(rope->angles);
    s.n_rot = static_cast<int32_t>(rope->angles.ne[0]), s.mode = rope->mode;
  }
  for (const void *p : {static_cast<const void *>(s.a.q), static_cast<const void *>(s.k),
                        static_cast<const void *>(s.v), static_cast<const void *>(s.q_norm),
                        static_cast<const void *>(s.k_norm), static_cast<const void *>(s.angles)}) {
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return 0;
  }
  if ((s.a.q_head | s.k_row_head | s.v_row_head) % 16 != 0) return 0;
  const Bytes out(a.out), read[] = {Bytes(*q.from), Bytes(*k.from), Bytes(w.v)};
  const auto is_read = [&](const Bytes &b) { return b.meets(read[0]) || b.meets(read[1]) || b.meets(read[2]); };
  if (is_read(out)) return 0;
  // Turned heads that take the place of what they are made from are not wanted: nobody could tell when they are there.
  const auto made = [&](const luce_tensor &t) {
    const bool is_plain = t.nb[1] == 4 * t.ne[0] && !is_read(Bytes(t)) && !out.meets(Bytes(t));
    return is_plain ? data_of<float>(t) : nullptr;
  };
  if (q.rope || q.eps >= 0) s.q_made = made(a.q);
  if (k.rope || k.eps >= 0) s.k_made = made(w.k);
  return n + 2;
}

}  // namespace

#define LUCE_ATTEND_ROW(name, Pair, D, G)                                                                            \
  LUCE_GLOBAL_WITHIN(attention_row_##name##_##D##_##G, kAttentionThreads, 2)(const __grid_constant__ RowAttention s, \
                                                                             uint32_t *fault) {                      \
    attend_row<Pair, D, G>(s, fault);                                                                                \
  }
LUCE_ATTENTION_FORMS(LUCE_ATTEND_ROW)

int launch_row_attention(const luce_call *calls, int n_calls, Launcher &launcher) {
  RowAttention s;
  const int n = plan(calls, n_calls, launcher.most_shared, s);
  if (n == 0) return 0;
  // Two blocks to a multiprocessor where both have a ring of two pieces for each warp.
  const int64_t room_bytes = row_room_bytes(s.a.D, s.a.n_heads / s.a.n_kv), most_bytes = launcher.most_shared;
  const auto bytes_of = [&](int n_stages) { return room_bytes + row_ring_bytes(n_stages); };
  const int per_sm = 2 * (bytes_of(2) + kStaticBytes) <= most_bytes ? 2 : 1;
  s.n_stages = per_sm == 1 && bytes_of(4) + kStaticBytes <= most_bytes ? 4 : 2;
  const int64_t bytes = bytes_of(s.n_stages);
  if (bytes + kStaticBytes > most_bytes) return 0;
  const luce_attention_args &a = args_of<luce_attention_args>(calls[n - 1]);
  const bool is_f16 = a.k_pages.type == LUCE_F16;
  const int form =
      pages_kernel(a, launcher.most_shared).id - (is_f16 ? kernel_attention_f16_64_1 : kernel_attention_bf16_64_1);
  s.a.arrivals = launcher.arrivals;
  // A block that finds no split of its own leaves at once; one of a long row takes every grid.x-th. A split of a short
  // row is shared.
  const int fitting = per_sm * launcher.n_multiprocessors / s.a.n_kv;
  const int n_blocks = std::max(1, std::min({fitting, s.a.n_splits * (s.a.n_heads / s.a.n_kv), kMostSplits}));
  launcher((is_f16 ? kernel_attention_row_f16_64_1 : kernel_attention_row_bf16_64_1) + form, dim3(n_blocks, s.a.n_kv),
           kAttentionThreads, bytes, s);
  return n;
}

}  // namespace luce
