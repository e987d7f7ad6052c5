// The rules under ZeRO: parameters cut into shards or owned whole, also with state in files. L-BFGS under DDP.
#include <doctest/doctest.h>

#include "extensions/optimizers/optimizers.h"
#include "tests/devices.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::Offload;
using zero::ZeroOptions;

namespace {

ZeroOptions at(int stage) { return {.stage = stage, .reduce_bucket_size = 5000, .param_persistence_threshold = 500}; }

/// Options that offload the optimizer's state to `device` in tiles. In stage 3, only the fraction `ratio` of the state
/// is offloaded; with nvme and ratio 1, the parameters are offloaded too.
ZeroOptions in_files(int stage, Offload device = Offload::nvme, double ratio = 1) {
  ZeroOptions o{.stage = stage, .reduce_bucket_size = 9000, .param_persistence_threshold = 300};
  o.offload_optimizer.device = device;
  o.offload_optimizer.nvme_path = folder;
  o.sub_group_size = 4096;
  if (stage != 3) return o;
  o.offload_optimizer.ratio = ratio;
  if (device == Offload::nvme && ratio == 1)
    o.offload_param = {
        .device = device, .nvme_path = folder, .buffer_count = 2, .buffer_size = 1 << 20, .max_in_cpu = 0};
  return o;
}

const struct {
  const char* name;
  MakeOptimizer make;
  bool in_files = false;  ///< true: trained with its state in files and tiles, too
} zero_rows[] = {{"Adagrad", maker<optim::Adagrad>(optim::AdagradOptions{.initial_accumulator = 0.1}), true},
                 {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions{.momentum = 0.5, .centered = true}), true},
                 {"Lion", maker<optim::Lion>(optim::LionOptions{.lr = 1e-3}), true},
                 {"LAMB", maker<optim::LAMB>(optim::LAMBOptions{.lr = 1e-2, .weight_decay = 0.1}), true},
                 {"NAdam", maker<optim::NAdam>(optim::NAdamOptions{.lr = 1e-2, .weight_decay = 0.1})},
                 {"RAdam", maker<optim::RAdam>(optim::RAdamOptions{.lr = 1e-2})},
                 {"Adamax", maker<optim::Adamax>(optim::AdamaxOptions{.lr = 1e-2})},
                 {"Adadelta", maker<optim::Adadelta>(optim::AdadeltaOptions{.weight_decay = 0.1})},
                 {"ASGD", maker<optim::ASGD>(optim::ASGDOptions{.t0 = 1})},
                 {"Rprop", maker<optim::Rprop>(optim::RpropOptions{}), true},
                 {"Sophia", maker<optim::Sophia>(optim::SophiaOptions{.lr = 1e-2, .hessian_interval = 2})},
                 {"AdamWScheduleFree",
                  maker<optim::AdamWScheduleFree>(
                      optim::AdamWScheduleFreeOptions{.lr = 1e-2, .weight_decay = 0.1, .warmup_steps = 2}),
                  true},
                 {"Adafactor", maker<optim::Adafactor>(optim::AdafactorOptions{.weight_decay = 0.1})}};

}  // namespace

TEST_CASE("zero: every rare rule, cut into shards or owned whole") {
  for (const auto& row : zero_rows) {
    for (const DType dtype : {f32, bf16}) {
      ZeroPlan plan{.dtype = dtype, .steps = 3, .make = row.make};
      const Tensors one = train(plan);
      plan.ranks = 4, plan.accumulation = 2;
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(row.name);
        CAPTURE(stage);
        CAPTURE(dtype);
        plan.options = at(stage);
        CHECK(differing(one, train(plan)) == "");
      }
    }
  }
}

TEST_CASE("zero: two optimizers, Muon for matrices and AdamW for the rest") {
  const OnCpu on_cpu;  // the ranks have no GPU
  const auto run = [](int ranks, int stage) {
    return train_two<optim::Muon>(ranks, {.stage = stage, .param_persistence_threshold = 500}, 0.1);
  };
  const Tensors one = run(1, 0);
  for (const int stage : {1, 2, 3})
    for (const int ranks : {2, 4}) CHECK(differing(one, run(ranks, stage)) == "");
  const Tensors plain = train_two<optim::Muon>(1, {.stage = 0});
  for (const int stage : {1, 2, 3})
    for (const int ranks : {1, 2, 4}) CHECK(differing(plain, train_two<optim::Muon>(ranks, in_files(stage))) == "");
}

TEST_CASE("offload: rare rules, in files and in tiles") {
  for (const auto& row : zero_rows) {
    for (const DType dtype : {f32, bf16}) {
      if (!row.in_files) continue;
      ZeroPlan plan{.options = ZeroOptions{.stage = 0}, .dtype = dtype, .steps = 3, .make = row.make};
      const Tensors one = train(plan);
      plan.ranks = 2, plan.accumulation = 4;
      for (const int stage : {1, 3}) {
        for (const ZeroOptions& options :
             {in_files(stage), in_files(stage, Offload::cpu), in_files(stage, Offload::nvme, 0.6)}) {
          CAPTURE(row.name);
          CAPTURE(stage);
          CAPTURE(dtype);
          plan.options = options;
          CHECK(differing(one, train(plan)) == "");
        }
      }
    }
  }
}

TEST_CASE("DDP: L-BFGS decides by the mean loss of the ranks, so that parameters stay the same") {
  for (const bool search : {false, true}) {
    struct Found {
      std::vector<float> weights;
      int64_t evaluations;
      double first;
      bool operator==(const Found&) const = default;
    };
    const auto found = on_ranks<Found>(2, [&](int rank) {
      manual_seed(1);
      nn::Linear net = linear(3, 1);
      optim::LBFGS optimizer(net.parameters(), {.max_iter = 8, .line_search = search});
      parallel::DistributedDataParallel ddp(net);
      manual_seed(5 + uint64_t(rank));
      const Tensor x = randn({6, 3}), y = mul_scalar(randn({6, 1}), rank ? 10. : 0.1);
      double first = 0;
      for (int i = 0; i < 3; ++i) first = optimizer.step([&] { return mse_loss(ddp(x), y); });
      return Found{net.weight.tensor().to_vector<float>(), optimizer.evaluations(), first};
    });
    CHECK(found[0] == found[1]);
  }
}
