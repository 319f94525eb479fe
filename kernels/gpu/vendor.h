// vendor.h: what the makers of GPUs call by different names. Kernels use these names alone, and have no #ifdef.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#define LUCE_DEVICE __device__ __forceinline__

namespace luce {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// A kernel of a step may start while the one before it still runs: it must call wait_for_previous() in every block
// before it reads what earlier kernels wrote, or writes at all. Elsewhere kernels follow each other and both are empty.
#if __CUDA_ARCH__ >= 900
constexpr bool kStartsEarly = true;
#else
constexpr bool kStartsEarly = false;
#endif
LUCE_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
LUCE_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A barrier of n_threads of a block, whole warps, that all name the same number from 1 to 15.
LUCE_DEVICE void meet_team(int which, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(n_threads) : "memory");
}

// 16 bytes of weights, which are read once: they should not push others out of the cache.
LUCE_DEVICE uint4 load_weights(const uint4 *p) {
  return __ldcs(p);
}

// What another block of this launch wrote: from where all see it.
LUCE_DEVICE float load_fresh(const float *p) {
  return __ldcg(p);
}

// Where in shared memory p is.
LUCE_DEVICE uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes to shared memory, which are there once the thread has waited for them; before Ampere at once. Copies
// are waited for in groups: commit_copies() ends one, wait_for_copies<n>() waits for all groups but the last n.
LUCE_DEVICE void copy_async(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  *static_cast<uint4 *>(to) = *static_cast<const uint4 *>(from);
#endif
}
// The same for 8 bytes, by way of the nearest cache.
LUCE_DEVICE void copy_eight_async(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  *static_cast<uint2 *>(to) = *static_cast<const uint2 *>(from);
#endif
}
LUCE_DEVICE void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int n>
LUCE_DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

// Weights that a warp copies to shared memory, which are read once: n bytes, a multiple of 16, at multiples of 16.
// `arrival` is a word there that tells whether they have come; it is used again and again, the first time with parity
// 0.
LUCE_DEVICE void begin_arrivals(uint64_t *arrival) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::"r"(
          shared_address(arrival))
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(shared_address(arrival)) : "memory");
#endif
}
LUCE_DEVICE void bring_weights(void *to, const uint8_t *from, int n_bytes, uint64_t *arrival) {
  const int lane = threadIdx.x % kLanes;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(arrival)), "r"(n_bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(shared_address(arrival)), "l"(policy)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  // Without a hint to the cache that they are read once: ptxas of CUDA 13.0 makes an illegal instruction of it where
  // the address in shared memory has a uniform part.
#pragma unroll 4
  for (int i = 16 * lane; i < n_bytes; i += 16 * kLanes) copy_async(static_cast<uint8_t *>(to) + i, from + i);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(arrival)) : "memory");
#else
  for (int i = 16 * lane; i < n_bytes; i += 16 * kLanes) {
    *reinterpret_cast<uint4 *>(static_cast<uint8_t *>(to) + i) =
        load_weights(reinterpret_cast<const uint4 *>(from + i));
  }
#endif
}
LUCE_DEVICE void wait_for_weights(uint64_t *arrival, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; again%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again%=; }" ::"r"(
                   shared_address(arrival)),
               "r"(parity)
               : "memory");
#elif __CUDA_ARCH__ >= 800
  // A warp that asks again and again takes turns from those that have something to do.
  asm volatile(
      "{ .reg .pred p; again%=: mbarrier.test_wait.parity.shared.b64 p, [%0], %1; @p bra done%=; nanosleep.u32 100; "
      "bra "
      "again%=; done%=: }" ::"r"(shared_address(arrival)),
      "r"(parity)
      : "memory");
#endif
  __syncwarp();
}

constexpr int kLineBytes = 128;  // of the cache

// Asks for the line that holds p, before it is needed.
LUCE_DEVICE void prefetch(const void *p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// 1 / x and 1 / sqrt(x) of a normal x, nearly.
LUCE_DEVICE float near_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LUCE_DEVICE float near_inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LUCE_DEVICE float shuffle_xor(float x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}
LUCE_DEVICE int shuffle_xor(int x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}
LUCE_DEVICE double shuffle_xor(double x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}

// c[16 x 8] += a[16 x 32] * b[32 x 8] of int8. With g = lane / 4, t = lane % 4: a[0], a[2] hold row g, a[1], a[3] row
// g + 8; a[0], a[1] and b[0] hold columns (of b: rows) 4t to 4t + 3, the others those 16 further on; b is of column g.
// c[0], c[1] are row g, columns 2t and 2t + 1; c[2], c[3] are row g + 8.
LUCE_DEVICE void mma_s8_k32(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif __CUDA_ARCH__ >= 750
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i % 2 * 2;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(c[row]), "+r"(c[row + 1])
                 : "r"(a[i]), "r"(b[i / 2]));
  }
#endif
}

// The same over 16 columns of a: a[0] is row g, a[1] row g + 8.
LUCE_DEVICE void mma_s8_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
#elif __CUDA_ARCH__ >= 750
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[0]), "+r"(c[1])
               : "r"(a0), "r"(b));
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[2]), "+r"(c[3])
               : "r"(a1), "r"(b));
#endif
}

}  // namespace luce
