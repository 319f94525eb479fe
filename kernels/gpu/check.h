// check.h: what check() functions ask of tensors.
#pragma once

#include "kernel.h"

namespace luce {

// Rows of 4-byte values, contiguous along ne[0].
inline bool is_f32(const luce_tensor &t) {
  return t.type == LUCE_F32 && t.layout == LUCE_ROWS && t.nb[0] == 4;
}
inline bool is_i32(const luce_tensor &t) {
  return t.type == LUCE_I32 && t.layout == LUCE_ROWS && t.nb[0] == 4;
}

// An array of n structs, as U8 with ne[0] = n and nb[0] = the size of one.
template <class Struct>
inline bool is_array_of(const luce_tensor &t) {
  return t.type == LUCE_U8 && t.layout == LUCE_ROWS && t.nb[0] == sizeof(Struct);
}

inline bool same_shape(const luce_tensor &a, const luce_tensor &b) {
  return a.ne[0] == b.ne[0] && a.ne[1] == b.ne[1] && a.ne[2] == b.ne[2] && a.ne[3] == b.ne[3];
}

inline bool is_float(int32_t type) {
  return type == LUCE_F32 || type == LUCE_F16 || type == LUCE_BF16;
}

}  // namespace luce
