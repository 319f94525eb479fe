// blocks.h: all of GGUF's quantised blocks that are read; format.h says what they are read into.
#pragma once

#include "level_blocks.h"
#include "plain_blocks.h"

namespace luce {

// visit(BlockOf<type>{}) for a quantised type; false for any other.
template <class Visit>
bool with_block(int32_t type, Visit visit) {
  switch (type) {
#define LUCE_CASE(name)     \
  case name:                \
    visit(BlockOf<name>{}); \
    return true;
    LUCE_CASE(LUCE_Q4_0)
    LUCE_CASE(LUCE_Q4_1)
    LUCE_CASE(LUCE_Q5_0)
    LUCE_CASE(LUCE_Q5_1)
    LUCE_CASE(LUCE_Q8_0)
    LUCE_CASE(LUCE_Q2_K)
    LUCE_CASE(LUCE_Q3_K)
    LUCE_CASE(LUCE_Q4_K)
    LUCE_CASE(LUCE_Q5_K)
    LUCE_CASE(LUCE_Q6_K)
    LUCE_CASE(LUCE_IQ2_XXS)
    LUCE_CASE(LUCE_IQ2_XS)
    LUCE_CASE(LUCE_IQ2_S)
    LUCE_CASE(LUCE_IQ3_XXS)
    LUCE_CASE(LUCE_IQ3_S)
    LUCE_CASE(LUCE_IQ4_NL)
    LUCE_CASE(LUCE_IQ4_XS)
    LUCE_CASE(LUCE_TQ2_0)
    LUCE_CASE(LUCE_MXFP4)
    LUCE_CASE(LUCE_NVFP4)
#undef LUCE_CASE
    default:
      return false;
  }
}

}  // namespace luce
