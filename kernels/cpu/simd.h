// simd.h: vectors of the native width of the instruction set that this file is compiled for. The only file but
// columns.h that asks which one that is. Arithmetic (+ - * / comparisons) is GCC's on vector types; here is what it has
// no operator for.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LUCE_INLINE inline __attribute__((always_inline))

namespace luce::LUCE_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float F32 __attribute__((vector_size(4 * kLanes)));
typedef int32_t I32 __attribute__((vector_size(4 * kLanes)));
typedef uint8_t U8 __attribute__((vector_size(4 * kLanes)));
typedef uint16_t U16 __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Half __attribute__((vector_size(2 * kLanes)));  // kLanes F16 or BF16 values, as bits
typedef int8_t Bytes __attribute__((vector_size(kLanes)));       // kLanes 8-bit values

template <class V>
LUCE_INLINE V load(const void *p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
LUCE_INLINE void store(void *p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// The first n lanes, the others 0.
template <class V>
LUCE_INLINE V load_first(const void *p, int64_t n) {
  V v = {};
  std::memcpy(&v, p, n * sizeof v[0]);
  return v;
}

template <class V>
LUCE_INLINE void store_first(void *p, V v, int64_t n) {
  std::memcpy(p, &v, n * sizeof v[0]);
}

LUCE_INLINE F32 splat(float x) {
  return x - F32{};
}
LUCE_INLINE I32 splat(int32_t x) {
  return x - I32{};
}

// a * b + c: rounded once where the chip can, twice on baseline.
LUCE_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

LUCE_INLINE float fma(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

LUCE_INLINE F32 max(F32 a, F32 b) {
  return a > b ? a : b;
}
LUCE_INLINE F32 min(F32 a, F32 b) {
  return a < b ? a : b;
}
LUCE_INLINE F32 abs(F32 a) {
  return reinterpret_cast<F32>(reinterpret_cast<I32>(a) & 0x7FFFFFFF);
}

// GCC 12 makes scalar code of __builtin_convertvector where these have one instruction.
LUCE_INLINE I32 widen(Bytes a) {
#if defined(__AVX512F__)
  return reinterpret_cast<I32>(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<I32>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(reinterpret_cast<int64_t>(a))));
#else
  return __builtin_convertvector(a, I32);
#endif
}

LUCE_INLINE I32 widen(Half a) {
#if defined(__AVX512F__)
  return reinterpret_cast<I32>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<I32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(a)));
#else
  return __builtin_convertvector(a, I32);
#endif
}

LUCE_INLINE Half narrow_to_half(I32 a) {
#if defined(__AVX512F__)
  return reinterpret_cast<Half>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(a)));
#else
  return __builtin_convertvector(a, Half);
#endif
}

LUCE_INLINE Bytes narrow_to_bytes(I32 a) {
#if defined(__AVX512F__)
  return reinterpret_cast<Bytes>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(a)));
#else
  return __builtin_convertvector(a, Bytes);
#endif
}

LUCE_INLINE F32 to_f32(I32 a) {
  return __builtin_convertvector(a, F32);
}
LUCE_INLINE F32 to_f32(Bytes a) {
  return to_f32(widen(a));
}
LUCE_INLINE F32 bf16_to_f32(Half h) {
  return reinterpret_cast<F32>(widen(h) << 16);
}

LUCE_INLINE float bf16_to_f32(uint16_t h) {
  const uint32_t bits = uint32_t{h} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// Round to nearest, half to even; a NaN stays one.
LUCE_INLINE Half f32_to_bf16(F32 a) {
  const I32 bits = reinterpret_cast<I32>(a);
  const I32 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return narrow_to_half(a == a ? rounded : (bits >> 16) | 0x40);
}

LUCE_INLINE F32 f16_to_f32(Half h) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(h));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(h));
#else
  // The exponent is moved by a multiplication, which is exact and puts subnormals right; inf and NaN are mended after.
  const I32 bits = widen(h);
  const I32 magnitude = (bits & 0x7FFF) << 13;
  const F32 value = reinterpret_cast<F32>(magnitude) * 0x1p112f;
  const I32 special = (bits & 0x7FFF) >= 0x7C00 ? I32{} + 0x7F800000 : I32{};
  return reinterpret_cast<F32>(reinterpret_cast<I32>(value) | special | (bits & 0x8000) << 16);
#endif
}

LUCE_INLINE Half f32_to_f16(F32 a) {
#if defined(__AVX512F__)
  return reinterpret_cast<Half>(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return reinterpret_cast<Half>(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
#else
  // Subnormals are rounded by adding a number whose last bit is theirs, the others in integers.
  const I32 bits = reinterpret_cast<I32>(a), magnitude = bits & 0x7FFFFFFF;
  const I32 normal = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const I32 small = reinterpret_cast<I32>(reinterpret_cast<F32>(magnitude) + 0.5f) - 0x3F000000;
  const I32 large = magnitude > 0x7F800000 ? I32{} + 0x7E00 : I32{} + 0x7C00;
  I32 half = magnitude < 0x38800000 ? small : normal;
  half = magnitude >= 0x477FF000 ? large : half;
  return narrow_to_half(half | ((bits >> 16) & 0x8000));
#endif
}

LUCE_INLINE float f16_to_f32(uint16_t h) {
  return f16_to_f32(Half{h})[0];
}
LUCE_INLINE uint16_t f32_to_f16(float a) {
  return f32_to_f16(F32{a})[0];
}
LUCE_INLINE uint16_t f32_to_bf16(float a) {
  return f32_to_bf16(F32{a})[0];
}

// Lanes k and k ^ n change places.
template <int n, class V, int... k>
LUCE_INLINE V swap_lanes(V a, std::integer_sequence<int, k...>) {
  return __builtin_shufflevector(a, a, (k ^ n)...);
}

// Halves joined to halves: one order, whatever the length of what came before.
template <int n, class V, class Join>
LUCE_INLINE auto reduce(V a, Join join) {
  if constexpr (n == 0) {
    return a[0];
  } else {
    return reduce<n / 2>(join(a, swap_lanes<n>(a, std::make_integer_sequence<int, kLanes>())), join);
  }
}

LUCE_INLINE float sum(F32 a) {
  return reduce<kLanes / 2>(a, [](F32 x, F32 y) { return x + y; });
}
LUCE_INLINE int32_t sum(I32 a) {
  return reduce<kLanes / 2>(a, [](I32 x, I32 y) { return x + y; });
}
LUCE_INLINE float largest(F32 a) {
  return reduce<kLanes / 2>(a, [](F32 x, F32 y) { return max(x, y); });
}

// table[index] for each byte; indices are below 16.
LUCE_INLINE U8 look_up(const uint8_t (&table)[16], U8 index) {
#if defined(__AVX512BW__)
  const __m512i tables = _mm512_broadcast_i32x4(load<__m128i>(table));
  return reinterpret_cast<U8>(_mm512_shuffle_epi8(tables, reinterpret_cast<__m512i>(index)));
#elif defined(__AVX2__)
  const __m256i tables = _mm256_broadcastsi128_si256(load<__m128i>(table));
  return reinterpret_cast<U8>(_mm256_shuffle_epi8(tables, reinterpret_cast<__m256i>(index)));
#else
  U8 out;
  for (int i = 0; i < 4 * kLanes; ++i) out[i] = table[index[i]];
  return out;
#endif
}

// What dot16<8> takes codes of 8 bits for: unsigned where the chip multiplies unsigned by signed bytes into 32 bits,
// else signed, as code - 128.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool kSigned8 = true;
#else
constexpr bool kSigned8 = false;
#endif

// Adds to each lane the products of its 16 codes (4 in each vector of w) with the 16 activations of which 4 lie at a,
// a + stride, a + 2 * stride, a + 3 * stride. Exact for codes of `bits` bits (7: at most 128) and activations of -127
// to 127.
template <int bits>
LUCE_INLINE I32 dot16(I32 sum, const U8 *w, const uint8_t *a, int stride) {
#if defined(__AVX512VNNI__)
  for (int j = 0; j < 4; ++j) {
    const __m512i four = _mm512_set1_epi32(load<int32_t>(a + j * stride));
    sum = reinterpret_cast<I32>(
        _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(w[j]), four));
  }
  return sum;
#elif defined(__AVX2__)
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i pairs[4];  // 16-bit sums of two products
  for (int j = 0; j < 4; ++j) {
    const __m256i code = reinterpret_cast<__m256i>(w[j]);
    const __m256i four = _mm256_set1_epi32(load<int32_t>(a + j * stride));
    pairs[j] = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(four, code))
                         : _mm256_maddubs_epi16(code, four);
  }
  auto widen = [&](__m256i p) { return reinterpret_cast<I32>(_mm256_madd_epi16(p, ones)); };
  if constexpr (bits >= 7) {  // a pair is at most 2 * 128 * 127: no room for another in 16 bits
    return sum + (widen(pairs[0]) + widen(pairs[1])) + (widen(pairs[2]) + widen(pairs[3]));
  } else if constexpr (bits == 6) {  // 2 * 63 * 127: room for two
    return sum + widen(_mm256_add_epi16(pairs[0], pairs[1])) + widen(_mm256_add_epi16(pairs[2], pairs[3]));
  } else {  // at most 2 * 31 * 127: room for four
    return sum + widen(_mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3])));
  }
#else
  typedef int16_t Products __attribute__((vector_size(8 * kLanes)));
  typedef int32_t Pairs __attribute__((vector_size(8 * kLanes)));
  Pairs pairs = {};
  for (int j = 0; j < 4; ++j) {
    typedef int8_t Signed __attribute__((vector_size(4 * kLanes)));
    const Signed four = reinterpret_cast<Signed>(splat(load<int32_t>(a + j * stride)));
    const Products p = __builtin_convertvector(w[j], Products) * __builtin_convertvector(four, Products);
    const Pairs both = reinterpret_cast<Pairs>(p);
    pairs += (both << 16 >> 16) + (both >> 16);
  }
  I32 fours;
  for (int lane = 0; lane < kLanes; ++lane) fours[lane] = pairs[2 * lane] + pairs[2 * lane + 1];
  return sum + fours;
#endif
}

}  // namespace luce::LUCE_ISA
