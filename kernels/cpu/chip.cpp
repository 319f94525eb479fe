// chip.cpp: instruction sets, cores and the name of the processor.

#include "chip.h"

#include <cstring>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace luce {

luce_isa best_isa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2) return avx512 ? LUCE_ISA_AVX512 : LUCE_ISA_AVX2;
#endif
  return LUCE_ISA_BASELINE;
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

std::string chip_name() {
#if defined(__x86_64__)
  unsigned words[12];
  for (unsigned i = 0; i < 3; ++i) {
    unsigned *w = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, w, w + 1, w + 2, w + 3)) return "x86-64";
  }
  char name[sizeof words + 1] = {};
  std::memcpy(name, words, sizeof words);
  return name + std::strspn(name, " ");
#else
  return "CPU";
#endif
}

}  // namespace luce
