// The golden cases of operations that few models need.
#include "extensions/operations/operations.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

void add_operations(Functions& functions) {
  using In = const Inputs&;
  using Of = const Case&;
  auto& t = functions.ops;
  t["flip"] = [](In in, Of c) { return Outputs{flip(in[0], c.dims("dims"))}; };
  t["roll"] = [](In in, Of c) { return Outputs{roll(in[0], c.dims("shifts"), c.dims("dims"))}; };
  t["repeat"] = [](In in, Of c) { return Outputs{repeat(in[0], c.dims("repeats"))}; };
  t["one_hot"] = [](In in, Of c) { return Outputs{one_hot(in[0].tensor(), c.integer("classes", -1))}; };
  t["prod"] = [](In in, Of c) { return Outputs{prod(in[0], c.dims("dim"), c.flag("keepdim", false))}; };
  t["cumsum"] = [](In in, Of c) { return Outputs{cumsum(in[0], c.integer("dim"))}; };
  t["cumprod"] = [](In in, Of c) { return Outputs{cumprod(in[0], c.integer("dim"))}; };
  t["einsum"] = [](In in, Of c) { return Outputs{einsum(c.text("equation", ""), in)}; };
}

}  // namespace golden
