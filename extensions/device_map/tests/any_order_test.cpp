// A model and its Dispatched may be destroyed in any order.
#include "tests/any_order.h"

#include "extensions/device_map/dispatch.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("device map: a model and its Dispatched are destroyed in every order") {
  destroy_in_every_order({{"device map", 1, [](int) -> Owners {
                             auto net = std::make_shared<Borrowed>();
                             net->eval();
                             const device_map::DeviceMap map{{"", "cpu:0"}, {"body", "cpu"}};
                             auto dispatched = std::make_shared<device_map::Dispatched>(
                                 device_map::dispatch(*net, device_map::infer(*net, map)));
                             const NoGrad no_grad;
                             (*net)(borrowed_input());
                             return {net, dispatched};
                           }}});
}
