// The golden cases of operations that few models need.
#include "extensions/operations/operations.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

KlReduction kl_reduction(const Case& c) {
  const std::string name = c.text("reduction", "mean");
  return name == "batchmean" ? KlReduction::batchmean
         : name == "sum"     ? KlReduction::sum
         : name == "none"    ? KlReduction::none
                             : KlReduction::mean;
}

}  // namespace

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
  const auto nll = [](const Variable& log_probabilities, In in, Of c) {
    return Outputs{nll_loss(log_probabilities, in[1].tensor(),
                            {.weight = in.size() > 2 ? in[2].tensor() : Tensor(),
                             .ignore_index = c.integer("ignore_index", -100),
                             .reduction = c.reduction()})};
  };
  t["nll_loss"] = [=](In in, Of c) { return nll(in[0], in, c); };
  t["nll_loss of log_softmax"] = [=](In in, Of c) { return nll(log_softmax(in[0], 1), in, c); };
  t["l1_loss"] = [](In in, Of c) { return Outputs{l1_loss(in[0], in[1], c.reduction())}; };
  t["smooth_l1_loss"] = [](In in, Of c) {
    return Outputs{smooth_l1_loss(in[0], in[1], c.number("beta", 1), c.reduction())};
  };
  t["huber_loss"] = [](In in, Of c) { return Outputs{huber_loss(in[0], in[1], c.number("delta"), c.reduction())}; };
  t["bce_with_logits"] = [](In in, Of c) { return Outputs{bce_with_logits(in[0], in[1], {}, {}, c.reduction())}; };
  t["bce_with_logits_weighted"] = [](In in, Of c) {
    return Outputs{bce_with_logits(in[0], in[1], in[2].tensor(), in[3].tensor(), c.reduction())};
  };
  t["kl_div"] = [](In in, Of c) { return Outputs{kl_div(in[0], in[1], kl_reduction(c), c.flag("log_target", false))}; };
  t["kl_div of softmax"] = [](In in, Of c) {
    return Outputs{kl_div(log_softmax(in[0], 1), softmax(in[1], 1), kl_reduction(c))};
  };
}

}  // namespace golden
