// DataParallel in training: frozen parameters, memory that runs out, and objects destroyed in any order.
#include "extensions/data_parallel/data_parallel.h"
#include "optim/optim.h"
#include "tests/any_order.h"
#include "tests/devices.h"
#include "tests/parallel/memory_fault.h"

using namespace lockstep;
using namespace testing;
using parallel::DataParallel;

namespace {

/// Trains other layers in each phase, and c in all of them. Returns the parameters after each phase, by "phase name".
/// on_two: by replicas on two devices. biases_too: false leaves the biases trained.
Tensors train_in_phases(bool on_two, bool biases_too) {
  const Devices two(2);
  manual_seed(2);
  Mlp net;
  DataParallel<Mlp> model(net);
  optim::AdamW adamw(net.parameters(), {.lr = 1e-2, .weight_decay = 0.1});
  Tensors all;
  int phase = 0, step = 0;
  for (const std::string trained : {"bc", "abc", "c", "ac"}) {
    for (auto& p : net.named_parameters()) {
      const bool wanted = trained.find(p.name[0]) != std::string::npos;
      p.variable.requires_grad_(wanted || (!biases_too && p.name.ends_with("bias")));
    }
    for (int i = 0; i < 2; ++i) {
      loss_of(net, step++, 0, [&](const Variable& x) { return on_two ? model(x) : net(x); }).backward();
      adamw.step();
      adamw.zero_grad();
    }
    for (auto& [name, tensor] : copy_parameters(net)) all[str(phase, " ", name)] = tensor;
    ++phase;
  }
  return all;
}

}  // namespace

TEST_CASE("DataParallel: parameters frozen and trained again match one device") {
  const OnCpu on_cpu;
  for (const bool full : {true, false}) {
    const Tensors one = train_in_phases(false, full), found = train_in_phases(true, full);
    CHECK(found.size() == one.size());
    for (const auto& [key, tensor] : found) {
      CAPTURE(key);
      CHECK(allclose(tensor, one.at(key), 1e-4, 1e-5));
      if (full && key.starts_with("2 a"))  // frozen in phase 2: neither weight decay nor momentum changes it
        CHECK(equal(tensor, found.at("1" + key.substr(1))));
    }
  }
}

TEST_CASE("faults 31: out of memory in a step of two devices: the step run again is bit-identical") {
  const Devices two(2);
  Mlp net;
  DataParallel<Mlp> model(net);
  check_steps_again(net, [&](const Variable& x) { return model(x); });
}

TEST_CASE("DataParallel: a model, its replicas and an output are destroyed in every order") {
  const OnCpu on_cpu;
  destroy_in_every_order({{"DataParallel", 1, [](int) -> Owners {
                             auto net = std::make_shared<Borrowed>();
                             auto model = std::make_shared<DataParallel<Borrowed>>(*net);
                             auto output = std::make_shared<Variable>((*model)(borrowed_input()));
                             return {net, model, output};
                           }}});
}
