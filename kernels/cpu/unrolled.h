// unrolled.h: code once for each of n constants.
#pragma once

#include <utility>

#include "simd.h"

namespace luce::LUCE_ISA {

// f<0>(), f<1>(), ... f<n - 1>(). GCC 12 keeps an array of vectors in registers only where every index is a constant
// from the start, which a loop's is not, however it is unrolled later.
template <class F, int... i>
LUCE_INLINE void unrolled(F f, std::integer_sequence<int, i...>) {
  (f.template operator()<i>(), ...);
}
template <int n, class F>
LUCE_INLINE void unrolled(F f) {
  unrolled(f, std::make_integer_sequence<int, n>());
}
#define LUCE_UNROLLED __attribute__((always_inline))  // of the lambda

}  // namespace luce::LUCE_ISA
