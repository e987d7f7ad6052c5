// Parameters written by the user under ZeRO: writes take effect at the next step, in every stage and wherever master
// weights are, or they are rejected by name. Also averages that are enabled later.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::Offload;
using zero::ZeroOptions;

namespace {

/// Options under which parameters are whole on every rank between steps: stages 0 to 2, and parameters that stage 3
/// keeps.
const std::pair<const char*, ZeroOptions> replicated_places[] = {
    {"stage 0", {.stage = 0}},
    {"stage 1", {.stage = 1}},
    {"stage 2", {.stage = 2}},
    {"stage 3, persistent", {.stage = 3, .param_persistence_threshold = 1 << 20}},
    {"stage 1, on the host", {.stage = 1, .sub_group_size = 4096, .offload_optimizer = {.device = Offload::cpu}}},
    {"stage 1, in files",
     {.stage = 1, .sub_group_size = 4096, .offload_optimizer = {.device = Offload::nvme, .nvme_path = folder}}},
    {"stage 1, small tiles", {.stage = 1, .sub_group_size = 4096}}};

/// Trains while all ranks write to parameters between steps; returns the parameters.
Tensors train_with_writes(int ranks, const ZeroOptions& options, DType dtype) {
  return parameters_after(ranks, options, dtype, [](NetOnZero& on) {
    for (int step = 0; step < 4; ++step) {
      on.train(step);
      const NoGrad no_grad;
      if (step == 0) clamp_(on.net.b.weight.tensor(), -0.03, 0.03);
      if (step == 1) on.net.b.weight.tensor().narrow(0, 3, 40).fill_(0.25), on.net.c.bias.tensor().fill_(-1);
      if (step == 2) on.net.load_state({{"norm.weight", full({130}, 2)}}, false);
    }
  });
}

/// Checks that all values are nearly `value`, from which steps have moved them a little.
void check_near(const Tensor& tensor, double value) {
  CHECK(amax(abs(sub(tensor.to(f32), full({1}, value)))).item() < 0.05);
}

}  // namespace

TEST_CASE("zero: values that all ranks write to parameters count at the next step, with the same bits") {
  for (const DType dtype : {f32, bf16, f16}) {
    const Tensors one = train_with_writes(1, {.stage = 0}, dtype);
    check_near(one.at("b.weight").narrow(0, 3, 40), 0.25);
    check_near(one.at("c.bias"), -1);
    CHECK(amin(one.at("norm.weight").to(f32)).item() > 1.9);
    for (const auto& [name, options] : replicated_places) {
      for (const int ranks : {1, 2}) {
        INFO(name, ", ", ranks, " ranks, ", dtype);
        CHECK(differing(one, train_with_writes(ranks, options, dtype)) == "");
      }
    }
  }
}

TEST_CASE("zero: a write to a 16-bit parameter counts, also if the next step leaves the parameter out") {
  const Tensors found = parameters_after(2, {.stage = 1}, bf16, [](NetOnZero& on) {
    on.train(0);
    on.net.b.weight.tensor().fill_(0.25);
    on.net.b.weight.requires_grad_(false);
    on.train(1);
    on.net.b.weight.requires_grad_(true);
    on.train(2);
  });
  check_near(found.at("b.weight"), 0.25);
}

TEST_CASE("zero: stage 3 refuses writes that it would lose, by name") {
  for (const DType dtype : {f32, bf16}) {
    on_ranks(1, [&](int) {
      NetOnZero on({.stage = 3, .param_persistence_threshold = 0}, dtype);
      on.train(0);
      nn::Linear& b = on.net.b;
      CHECK_ERROR(b.weight.tensor().fill_(1), "b.weight");
      const int hook = b.before_forward([&](auto&, auto&) { clamp_(b.weight.tensor(), -0.01, 0.01); });
      const std::string error = message([&] { loss_of_micro_batch(on.net, 1, 0, dtype); });
      for (const char* part : {"b.weight", "was changed by 'clamp", "inside Zero::gathered(parameters, rank)"})
        CHECK(contains(error, part));
      b.remove_hook(hook);
      on.zero.zero_grad();
      on.train(1);
    });
  }
}

TEST_CASE("zero: averages that come and go leave master copies their bits, and pieces that are loaded do not") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto run = [&](bool looks, bool loads) {
      return parameters_after(2, {.stage = stage}, bf16, [&](NetOnZero& on) {
        for (int step = 0; step < 3; ++step) {
          on.train(step);
          std::vector<std::pair<Tensor, Tensor>> own;
          for (const auto& piece : on.zero.state(true))
            if (piece.name.starts_with("model.")) own.emplace_back(piece.tensor, piece.tensor.clone());
          if (looks)
            for (const bool back : {false, true}) {
              for (auto& [place, value] : own) back ? place.copy_(value) : place.fill_(0.5);
              on.zero.loaded(false);
            }
          if (loads && step == 1) {
            for (auto& [place, value] : own) place.fill_(0.5);
            on.zero.loaded();
          }
        }
      });
    };
    CHECK(differing(run(false, false), run(true, false)) == "");
    check_near(run(false, true).at("b.weight"), 0.5);
  }
}

TEST_CASE("zero: an average and a momentum that are switched on later begin with the step, in every tile") {
  const auto run = [](int64_t tile, int stage) {
    return on_ranks<Tensors>(1, [&](int) {
      NetOnZero on({.stage = stage, .sub_group_size = tile}, f32,
                   maker<optim::SGD>(optim::SGDOptions{.lr = 0.1, .dampening = 0.5}));
      for (int step = 0; step < 3; ++step) {
        if (step == 2) on.optimizer->keep_average(0.99), on.optimizer->set(0, "momentum", 0.5);
        on.train(step);
      }
      Tensors all;
      for (const auto& piece : on.zero.state()) all[piece.name] = piece.tensor.clone();
      return all;
    })[0];
  };
  const Tensors one = run(1 << 20, 0);
  for (const auto& [name, tensor] : one)
    if (name.starts_with("optimizer.ema.")) CHECK(equal(tensor, one.at("model." + name.substr(14))));
  CHECK(one.count("optimizer.momentum_buffer.b.weight"));
  for (const int stage : {0, 1}) CHECK(differing(one, run(4096, stage)) == "");
}
