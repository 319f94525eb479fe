// chip.h: what this machine's processor is and can do.
#pragma once

#include <string>

#include "luce.h"

namespace luce {

luce_isa best_isa();
// Cores that this process may run on.
int usable_cores();
std::string chip_name();

}  // namespace luce
