// pack.cpp: every weight is read best as it lies in the file.

#include "context.h"

extern "C" luce_status luce_packed_bytes(luce_context *, const luce_tensor *, int64_t *out_bytes) {
  *out_bytes = 0;
  return LUCE_OK;
}

extern "C" luce_status luce_pack(luce_context *context, const luce_tensor *, void *, int64_t, int64_t) {
  return context->fail(LUCE_UNSUPPORTED, "no type is packed");
}
