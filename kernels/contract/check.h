// check.h: what a check() answers, and what it asks of tensors. Host code of every library.
#pragma once

#include <cstdint>

#include "luce.h"

namespace luce {

// What check() answers.
struct Verdict {
  luce_status status = LUCE_OK;
  const char *message = "";
};

inline Verdict unsupported(const char *message) {
  return {LUCE_UNSUPPORTED, message};
}
inline Verdict bad(const char *message) {
  return {LUCE_BAD_ARGUMENT, message};
}

// Rows of 4-byte values, contiguous along ne[0].
inline bool is_f32(const luce_tensor &t) {
  return t.type == LUCE_F32 && t.layout == LUCE_ROWS && t.nb[0] == 4;
}
inline bool is_i32(const luce_tensor &t) {
  return t.type == LUCE_I32 && t.layout == LUCE_ROWS && t.nb[0] == 4;
}

constexpr bool is_float(int32_t type) {
  return type == LUCE_F32 || type == LUCE_F16 || type == LUCE_BF16;
}

// An array of n structs, as U8 with ne[0] = n and nb[0] = the size of one.
template <class Struct>
inline bool is_array_of(const luce_tensor &t) {
  return t.type == LUCE_U8 && t.layout == LUCE_ROWS && t.nb[0] == sizeof(Struct);
}

inline bool same_shape(const luce_tensor &a, const luce_tensor &b) {
  return a.ne[0] == b.ne[0] && a.ne[1] == b.ne[1] && a.ne[2] == b.ne[2] && a.ne[3] == b.ne[3];
}

constexpr int kQ8Bytes = 34;  // Q8_0: F16 d, int8 q[32]
constexpr int kQ4Bytes = 18;  // Q4_0: F16 d, 16 bytes: value i in the low nibble of byte i, i + 16 in the high one

// What cells of a paged cache may be.
inline bool is_cache_type(const luce_tensor &pages) {
  if (pages.layout != LUCE_ROWS) return false;
  switch (pages.type) {
    case LUCE_F32:
      return pages.nb[0] == 4;
    case LUCE_F16:
    case LUCE_BF16:
      return pages.nb[0] == 2;
    case LUCE_Q8_0:
      return pages.nb[0] == kQ8Bytes && pages.ne[0] % 32 == 0;
    case LUCE_Q4_0:
      return pages.nb[0] == kQ4Bytes && pages.ne[0] % 32 == 0;
    default:
      return false;
  }
}

}  // namespace luce
