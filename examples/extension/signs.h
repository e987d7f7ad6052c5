#pragma once
// Three ways to train with signs in place of numbers. See README.md.
#include <lockstep.h>
#include <lockstep/extend.h>

namespace signs {

/// Options of Signum.
struct SignumOptions {
  double lr = 1e-3, momentum = 0.9;
  std::vector<lockstep::optim::OptionRange> table() { return {{"lr", &lr}, {"momentum", &momentum, 0, 1}}; }
};
/// An optimizer: each weight moves by lr, against the sign of its average gradient (Bernstein et al., 2018).
class Signum : public lockstep::optim::OptimizerOf<SignumOptions> {
  LOCKSTEP_OPTIMIZER(Signum);
};

/// A compression of gradients for DDP: ranks send signs in one byte each, and the sign of most ranks becomes the
/// gradient. For at most 127 ranks.
lockstep::parallel::CommHook majority_vote();

/// Changes the weight of a layer to its signs, in one bit each, times one number for each output: the mean magnitude of
/// the output's weights (Rastegari et al., 2016). The weight is then fixed. The layer needs a multiple of 8 inputs.
void keep_signs(lockstep::nn::Linear& layer);

}  // namespace signs
