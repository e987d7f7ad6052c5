// Shared by all convolution layers: weight shapes, initialisation, text of options(). See conv.h.
#include "nn/conv.h"

#include <cmath>

#include "nn/init.h"

namespace lockstep::nn::convs {

Shape shape_of(const std::string& layer, int64_t in, int64_t out, int64_t groups, const Dims& kernel, bool transposed) {
  LOCKSTEP_CHECK(in > 0 && out > 0, "[", layer, "] expected channels > 0, got in ", in, " and out ", out);
  LOCKSTEP_CHECK(groups > 0 && in % groups == 0 && out % groups == 0, "[", layer, "] expected groups to divide in ", in,
                 " and out ", out, ", got ", groups);
  Shape shape{transposed ? in : out, (transposed ? out : in) / groups};
  for (const int64_t size : kernel) shape.push_back(size);
  return shape;
}

void start(const Variable& weight, const Variable& bias) {
  init::kaiming_uniform(weight, std::sqrt(5.0));
  const double bound = 1 / std::sqrt(double(init::fan(weight.shape()).in));
  if (bias.defined()) init::uniform(bias, -bound, bound);
}

std::string text(const Shape& weight, const ConvArgs& args, bool transposed) {
  const auto printed = [](const Dims& sizes) { return sizes.rank() == 1 ? str(sizes[0]) : str(sizes); };
  const int64_t other = weight[1] * args.groups;
  return str("in ", transposed ? weight[0] : other, ", out ", transposed ? other : weight[0], ", kernel ",
             printed({weight.begin() + 2, weight.end()}), ", stride ", printed(args.stride), ", padding ",
             printed(args.padding));
}

}  // namespace lockstep::nn::convs
