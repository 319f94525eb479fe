// pieces.h: loops over pieces whose size the compiler knows.
#pragma once

#include <bit>

#include "simd.h"

namespace luce::LUCE_ISA {

// Cuts [begin, end) into pieces of M, and what is left into smaller powers of two; visit<size>(begin of a piece).
template <int M, class Visit>
LUCE_INLINE void in_pieces(int64_t begin, int64_t end, Visit visit) {
  for (; end - begin >= M; begin += M) visit.template operator()<M>(begin);
  if constexpr (M > 1) in_pieces<std::bit_floor(M - 1u)>(begin, end, visit);
}

}  // namespace luce::LUCE_ISA
