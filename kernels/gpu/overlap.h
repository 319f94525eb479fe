// overlap.h: which calls cannot be one launch, since one writes memory that another of them is not done with. The
// engine reuses the memory of activations: an op that has read its input for the last time may be followed by one that
// writes there, and in one launch the rows of the first may still be read.
#pragma once

#include "kernel.h"

namespace luce {

// The memory of a tensor whose rows of a step lie along dimension d.
struct Span {
  uintptr_t begin, end;
  int64_t row_bytes;
  int32_t type;

  bool meets(const Span &other) const { return begin < other.end && other.begin < end; }
  // Row for row and value for value the same memory.
  bool is(const Span &other) const {
    return begin == other.begin && row_bytes == other.row_bytes && type == other.type;
  }
};
inline Span span_of(const luce_tensor &t, int d) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(t.data);
  return {begin, begin + static_cast<uintptr_t>(t.data ? t.ne[d] * t.nb[d] : 0), t.nb[d], t.type};
}

// What a call writes, then what it reads, beside the cache.
struct Touched {
  Span out;
  Span in[2];
};

inline Touched touched_by(const luce_call &call) {
  const auto of = [](int d, const luce_tensor &out, const luce_tensor &x, const luce_tensor &y) -> Touched {
    return {span_of(out, d), {span_of(x, d), span_of(y, d)}};
  };
  switch (call.op) {
    case LUCE_OP_rms_norm: {
      const auto &a = *static_cast<const luce_rms_norm_args *>(call.args);
      return of(2, a.out, a.x, a.x);
    }
    case LUCE_OP_add: {
      const auto &a = *static_cast<const luce_add_args *>(call.args);
      return of(1, a.out, a.a, a.b);
    }
    case LUCE_OP_glu: {
      const auto &a = *static_cast<const luce_glu_args *>(call.args);
      return of(1, a.out, a.gate, a.up);
    }
    case LUCE_OP_quantize: {
      const auto &a = *static_cast<const luce_quantize_args *>(call.args);
      return of(1, a.out, a.x, a.x);
    }
    case LUCE_OP_rope: {
      const auto &a = *static_cast<const luce_rope_args *>(call.args);
      return of(2, a.out, a.x, a.x);
    }
    case LUCE_OP_kv_write: {
      const auto &a = *static_cast<const luce_kv_write_args *>(call.args);
      return of(2, {}, a.k, a.v);
    }
    default:
      return {};
  }
}

// Whether call n writes where another row of a call before it may still be read or written: rows are at their own pace.
inline bool overwrites(const luce_call *calls, int n) {
  const Span out = touched_by(calls[n]).out;
  for (int j = 0; j < n; ++j) {
    const Touched before = touched_by(calls[j]);
    for (const Span &span : {before.out, before.in[0], before.in[1]}) {
      if (out.meets(span) && !out.is(span)) return true;
    }
  }
  return false;
}

}  // namespace luce
