// Rows of a table, as indices name them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace poet {

// Row numbers of every index, each checked and made non-negative.
std::vector<int64_t> read_rows(const Tensor& indices, int64_t row_count);

}  // namespace poet
