// peak.cpp: what one core multiplies and adds at most, in operations per second, one line for each kind:
//     c++ -std=c++20 -O3 -march=native -o peak peak.cpp && ./peak
// Twelve independent chains, nothing is loaded. Two operations are a multiplication and an addition.
#include <chrono>
#include <cstdio>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr long kSteps = 2000000;

template <class V>
void hide(V &value) {
  asm volatile("" : "+v"(value));
}

// Every chain a step further, kSteps times; the best of five. The indices are constants: the chains stay in registers.
template <class V, class Step, int... j>
void measure(const char *name, double operations, V zero, Step step, std::integer_sequence<int, j...>) {
  double best = 1e9;
  V chains[] = {(static_cast<void>(j), zero)...};
  (hide(chains[j]), ...);  // else the compiler sees that all are one
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (long i = 0; i < kSteps; ++i) ((chains[j] = step(chains[j])), ...);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (s < best) best = s;
  }
  (hide(chains[j]), ...);
  std::printf("%s %.0f\n", name, operations * sizeof...(j) * kSteps / best);
}
template <class V, class Step>
void measure(const char *name, double operations, V zero, Step step) {
  measure(name, operations, zero, step, std::make_integer_sequence<int, 12>());
}

}  // namespace

int main() {
#if defined(__AVX512VNNI__)
  const __m512 x = _mm512_set1_ps(1e-3f);
  measure("f32", 32, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_fmadd_ps(x, x, sum); });
  const __m512i codes = _mm512_set1_epi8(1);
  measure("int8", 128, _mm512_setzero_si512(), [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, codes, codes); });
#if defined(__AVX512BF16__)
  const __m512bh halves = (__m512bh)_mm512_set1_epi16(0x3C00);
  measure("bf16", 64, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_dpbf16_ps(sum, halves, halves); });
#endif
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256 x = _mm256_set1_ps(1e-3f);
  measure("f32", 16, _mm256_setzero_ps(), [&](__m256 sum) { return _mm256_fmadd_ps(x, x, sum); });
  const __m256i codes = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  measure("int8", 64, _mm256_setzero_si256(), [&](__m256i sum) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, codes), ones));
  });
#endif
}
