// matmul_plan.cu: which kernel of matmul_some.cu makes a matmul, and how its blocks divide K, rows and outputs.

#include <algorithm>
#include <array>
#include <bit>

#include "matmul_some.cuh"

namespace luce {
namespace {

// A kernel, and what it costs: instructions for each 32 values of k and 16 outputs, as compiled for Q4_K.
struct Kernel {
  int id, columns, instructions;
  int64_t (*shared_bytes)(int n_warps, int64_t n_groups, int stages);
};

template <int type>
std::array<Kernel, 2> kernels_from(int id) {
  return {{{id, 1, 34, SomeRows<type, 1>::shared_bytes}, {id + 1, 2, 51, SomeRows<type, 2>::shared_bytes}}};
}

std::array<Kernel, 2> kernels_of(int32_t type) {
  switch (type) {
#define LUCE_CASE(name, type) \
  case type:                  \
    return kernels_from<type>(kernel_matmul_##name##_1);
    LUCE_QUANTISED(LUCE_CASE)
#undef LUCE_CASE
    default:
      return {};
  }
}

struct Plan {
  Kernel kernel;
  int n_warps, n_eighths, stages, n_groups, n_sets, n_chunks;
  int n_chunks_at_once;
  int64_t cost;  // instructions of the busiest multiprocessor

  int n_splits() const { return 8 / n_eighths; }
  int n_teams() const { return n_warps / n_eighths; }
};

// The fewest splits of K with which the rows fit into a block's shared memory; if none does, the rows come bit by bit,
// for every set of tiles anew. Blocks stay, one on each multiprocessor. Cost 0: nothing fits.
Plan plan_with(const Kernel &kernel, int n_warps, const MatmulArgs &a, const Launcher &launcher) {
  constexpr int64_t kStaticBytes = 1 << 10;
  Plan plan = {kernel, n_warps, 8, 2, 0, 0, 0, 0, 0};
  const auto wanted = [&] { return static_cast<int>(blocks_of(blocks_of(a.K, 256) * plan.n_eighths, 8)); };
  const auto fits = [&] {
    return kernel.shared_bytes(n_warps, plan.n_groups, plan.stages) + kStaticBytes <= launcher.most_shared;
  };
  plan.n_groups = wanted();
  while (plan.n_eighths > 1 && !fits()) {
    plan.n_eighths /= 2;
    plan.n_groups = wanted();
  }
  if (!fits()) plan.stages = 1;
  while (plan.n_groups > 1 && !fits()) --plan.n_groups;
  if (!fits()) return plan;
  while (plan.stages < kMostStages && fits()) ++plan.stages;
  if (!fits()) --plan.stages;
  const int n_times = static_cast<int>(blocks_of(wanted(), plan.n_groups));
  plan.n_sets = static_cast<int>(blocks_of(a.n_tiles(), plan.n_teams()));
  plan.n_chunks = static_cast<int>(blocks_of(a.bound, 8 * kernel.columns));
  plan.n_chunks_at_once = std::clamp(launcher.n_multiprocessors / plan.n_splits(), 1, plan.n_chunks);
  const int n_workers = std::max(1, launcher.n_multiprocessors / (plan.n_splits() * plan.n_chunks_at_once));
  plan.cost = int64_t{blocks_of(plan.n_sets, n_workers)} * blocks_of(plan.n_chunks, plan.n_chunks_at_once) * n_warps *
              kernel.instructions * n_times;
  return plan;
}

}  // namespace

void launch_some(int32_t type, const MatmulArgs &all, Launcher &launcher) {
  Plan plan = {};
  // Half as many warps only where there is no room for more.
  for (int n_warps = kMostWarps; plan.cost == 0 && n_warps >= 8; n_warps /= 2) {
    for (const Kernel &kernel : kernels_of(type)) {
      const Plan other = plan_with(kernel, n_warps, all, launcher);
      if (plan.cost == 0 || (other.cost > 0 && other.cost < plan.cost)) plan = other;
    }
  }
  if (plan.cost == 0) {
    launcher.error = cudaErrorInvalidConfiguration;
    return;
  }
  const int n_splits = plan.n_splits(), n_rows = 8 * plan.kernel.columns;
  // Where blocks share tiles, as many sets at a time as there is room for what they leave.
  const int64_t set_bytes = int64_t{4} * plan.n_teams() * n_splits * kTileRows * n_rows;
  const int64_t room = std::min<int64_t>(kArrivals / plan.n_teams(), kScratchBytes / set_bytes);
  const int n_chunks = plan.n_chunks_at_once;
  const int n_sets = n_splits == 1 ? plan.n_sets : static_cast<int>(std::min<int64_t>(plan.n_sets, room / n_chunks));
  MatmulSomeArgs args = {all,
                         std::countr_zero(unsigned(n_splits)),
                         0,
                         0,
                         0,
                         plan.stages,
                         plan.n_groups,
                         launcher.scratch,
                         launcher.arrivals};
  for (int chunk = 0; chunk < plan.n_chunks; chunk += n_chunks) {
    args.first_row = chunk * n_rows;
    const int n_now = std::min(n_chunks, plan.n_chunks - chunk);
    for (int set = 0; set < plan.n_sets; set += n_sets) {
      args.first_set = set;
      args.end_set = std::min(plan.n_sets, set + n_sets);
      const int n_workers = std::clamp(launcher.n_multiprocessors / (n_splits * n_now), 1, args.end_set - set);
      launcher(plan.kernel.id, dim3(n_splits, n_now, n_workers), plan.n_warps * kLanes,
               plan.kernel.shared_bytes(plan.n_warps, plan.n_groups, plan.stages), args);
    }
  }
}

}  // namespace luce
