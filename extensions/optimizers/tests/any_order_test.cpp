// A model, its optimizer and an average that is swapped in may be destroyed in any order.
#include "tests/any_order.h"

#include "extensions/optimizers/weight_average.h"
#include "tests/devices.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("optimizers: a model, its optimizer and its average are destroyed in every order") {
  const OnCpu on_cpu;
  destroy_in_every_order({{"average", 1, [](int) -> Owners {
                             auto net = std::make_shared<Borrowed>();
                             auto sgd = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.1});
                             auto average = std::make_shared<optim::WeightAverage>(net->parameters());
                             average->update();
                             average->swap();
                             return {net, sgd, average};
                           }}});
}
