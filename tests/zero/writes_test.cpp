// Parameters written by the user under ZeRO: writes take effect at the next step, in every stage and wherever master
// weights are, or they are rejected by name. Also averages that are enabled later.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::Offload;
using zero::ZeroOptions;

namespace {

struct Place {
  const char* name;
  ZeroOptions options;
};

/// Options under which parameters are whole on every rank between steps: stages 0 to 2, and parameters that stage 3
/// keeps.
std::vector<Place> replicated_places() {
  std::vector<Place> all{{"stage 0", {.stage = 0}},
                         {"stage 1", {.stage = 1}},
                         {"stage 2", {.stage = 2}},
                         {"stage 3, persistent", {.stage = 3, .param_persistence_threshold = 1 << 20}}};
  for (const Offload home : {Offload::cpu, Offload::nvme})
    all.push_back({"stage 1, offloaded",
                   {.stage = 1, .sub_group_size = 4096, .offload_optimizer = {.device = home, .nvme_path = folder}}});
  all.push_back({"stage 1, small tiles", {.stage = 1, .sub_group_size = 4096}});
  return all;
}

void one_step(Net& net, Zero& zero, int step, DType dtype) {
  const int accumulation = 4 / zero.group().size();
  backwards(zero, accumulation, [&](int64_t micro) { loss_of_micro_batch(net, step, micro, dtype).backward(); });
  zero.step({.grad_scale = 1. / accumulation});
}

/// Trains while all ranks write to parameters between steps; returns the parameters.
Tensors train_with_writes(int ranks, const ZeroOptions& options, DType dtype) {
  return on_ranks<Tensors>(ranks, [&](int) {
    manual_seed(1);
    Net net;
    net.to(dtype);
    const auto optimizer = adamw(net.parameters());
    Zero zero(net, *optimizer, options);
    for (int step = 0; step < 4; ++step) {
      one_step(net, zero, step, dtype);
      const NoGrad no_grad;
      if (step == 0) clamp_(net.b.weight.tensor(), -0.03, 0.03);
      if (step == 1) net.b.weight.tensor().narrow(0, 3, 40).fill_(0.25), net.c.bias.tensor().fill_(-1);
      if (step == 2) net.load_state({{"norm.weight", full({130}, 2)}}, false);
    }
    return gathered_parameters(zero, net);
  })[0];
}

}  // namespace

TEST_CASE(
    "zero: values that all ranks write to parameters count at the next step, in every stage, with the same bits") {
  for (const DType dtype : {f32, bf16, f16}) {
    const Tensors one = train_with_writes(1, {.stage = 0}, dtype);
    CHECK(amax(abs(sub(one.at("b.weight").narrow(0, 3, 40).to(f32), full({1}, 0.25)))).item() < 0.05);
    CHECK(amax(abs(sub(one.at("c.bias").to(f32), full({1}, -1)))).item() < 0.05);
    CHECK(amin(one.at("norm.weight").to(f32)).item() > 1.9);
    for (const Place& place : replicated_places()) {
      for (const int ranks : {1, 2}) {
        CAPTURE(place.name);
        CAPTURE(ranks);
        CAPTURE(dtype);
        CHECK(differing(one, train_with_writes(ranks, place.options, dtype)) == "");
      }
    }
  }
}

TEST_CASE("zero: a write to a 16-bit parameter counts, also if the next step leaves the parameter out") {
  const Tensors found = on_ranks<Tensors>(2, [&](int) {
    manual_seed(1);
    Net net;
    net.to(bf16);
    const auto optimizer = adamw(net.parameters());
    Zero zero(net, *optimizer, {.stage = 1});
    one_step(net, zero, 0, bf16);
    net.b.weight.tensor().fill_(0.25);
    net.b.weight.requires_grad_(false);
    one_step(net, zero, 1, bf16);
    net.b.weight.requires_grad_(true);
    one_step(net, zero, 2, bf16);
    return gathered_parameters(zero, net);
  })[0];
  CHECK(amax(abs(sub(found.at("b.weight").to(f32), full({1}, 0.25)))).item() < 0.05);
}

TEST_CASE("zero: stage 3 refuses writes that it would lose, by name") {
  for (const DType dtype : {f32, bf16}) {
    Net net;
    net.to(dtype);
    const auto optimizer = adamw(net.parameters());
    on_ranks(1, [&](int) {
      Zero zero(net, *optimizer, {.stage = 3, .param_persistence_threshold = 0});
      one_step(net, zero, 0, dtype);
      CHECK_ERROR(net.b.weight.tensor().fill_(1), "b.weight");
      const int hook = net.b.before_forward([&](auto&, auto&) { clamp_(net.b.weight.tensor(), -0.01, 0.01); });
      const std::string error = message([&] { loss_of_micro_batch(net, 1, 0, dtype); });
      CHECK(contains(error, "b.weight"));
      CHECK(contains(error, "was changed by 'clamp"));
      CHECK(contains(error, "inside Zero::gathered(parameters, rank)"));
      net.b.remove_hook(hook);
      zero.zero_grad();
      one_step(net, zero, 1, dtype);
    });
  }
}

TEST_CASE("zero: averages that come and go leave master copies their bits, and pieces that are loaded do not") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto run = [&](bool looks, bool loads) {
      return on_ranks<Tensors>(2, [&](int) {
        manual_seed(1);
        Net net;
        net.to(bf16);
        const auto optimizer = adamw(net.parameters());
        Zero zero(net, *optimizer, {.stage = stage});
        for (int step = 0; step < 3; ++step) {
          one_step(net, zero, step, bf16);
          std::vector<std::pair<Tensor, Tensor>> own;
          for (const auto& piece : zero.state(true))
            if (piece.name.starts_with("model.")) own.emplace_back(piece.tensor, piece.tensor.clone());
          if (looks)
            for (const bool back : {false, true}) {
              for (auto& [place, value] : own) back ? place.copy_(value) : place.fill_(0.5);
              zero.loaded(false);
            }
          if (loads && step == 1) {
            for (auto& [place, value] : own) place.fill_(0.5);
            zero.loaded();
          }
        }
        return gathered_parameters(zero, net);
      })[0];
    };
    CHECK(differing(run(false, false), run(true, false)) == "");
    CHECK(amax(abs(sub(run(false, true).at("b.weight").to(f32), full({1}, 0.5)))).item() < 0.05);
  }
}

TEST_CASE("zero: an average and a momentum that are switched on later begin with the step, in every tile") {
  const auto run = [](int64_t tile, int stage) {
    return on_ranks<Tensors>(1, [&](int) {
      manual_seed(1);
      Net net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1, .dampening = 0.5});
      Zero zero(net, sgd, {.stage = stage, .sub_group_size = tile});
      for (int step = 0; step < 3; ++step) {
        if (step == 2) sgd.keep_average(0.99), sgd.set(0, "momentum", 0.5);
        one_step(net, zero, step, f32);
      }
      Tensors all;
      for (const auto& piece : zero.state()) all[piece.name] = piece.tensor.clone();
      return all;
    })[0];
  };
  const Tensors one = run(1 << 20, 0);
  for (const auto& [name, tensor] : one)
    if (name.starts_with("optimizer.ema.")) CHECK(equal(tensor, one.at("model." + name.substr(14))));
  CHECK(one.count("optimizer.momentum_buffer.b.weight"));
  for (const int stage : {0, 1}) CHECK(differing(one, run(4096, stage)) == "");
}
