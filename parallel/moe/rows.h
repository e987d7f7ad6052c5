#pragma once
// Two operations on rows: to and from other ranks, and their sum by token. Both on the tape.
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "dist/process_group.h"

namespace lockstep::moe {

/// Rows of x (N, C), to_each[r] of them for rank r, in order; gives the from_each[r] rows of every rank r.
Variable exchange_rows(const Variable& x, const std::vector<int64_t>& to_each, const std::vector<int64_t>& from_each,
                       const std::shared_ptr<dist::ProcessGroup>& group, const char* tag);

/// out[index[i]] += x[i], in the order of i; out (size, C).
Variable add_rows(const Variable& x, const Tensor& index, int64_t size);

}  // namespace lockstep::moe
