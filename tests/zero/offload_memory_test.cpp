// Memory saved by offload: the ledger of each rank to the byte, and a model that does not fit otherwise.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <fstream>

#include "base/threads.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::Offload;
using zero::ZeroOptions;

namespace {

/// A line of /proc/self/status, in bytes.
int64_t status_of(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  return 0;
}

constexpr int64_t wide = 1024, deep = 24;
struct Tower : nn::Layer<Tower> {
  std::vector<nn::Linear> layers;
  Tower() {
    for (int i = 0; i < deep; ++i) layers.push_back(matrix(wide, wide));
  }
  Variable forward(const Variable& input) {
    Variable x = input;
    for (nn::Linear& layer : layers) x = layer(x) + x * 0.5;
    return x;
  }
  void fields(nn::Fields& f) override {
    for (size_t i = 0; i < layers.size(); ++i) f(std::to_string(i), layers[i]);
  }
};

}  // namespace

TEST_CASE("offload: what is offloaded is in the ledger's own category: all of it in host memory, buffers with files") {
  const struct {
    int stage;
    Offload optimizer, parameters;
    double ratio;
  } rows[] = {{1, Offload::cpu, Offload::none, 1},  {2, Offload::cpu, Offload::none, 1},
              {3, Offload::cpu, Offload::cpu, 1},   {3, Offload::cpu, Offload::none, 0.5},
              {1, Offload::nvme, Offload::none, 1}, {3, Offload::nvme, Offload::none, 1},
              {3, Offload::nvme, Offload::nvme, 1}, {3, Offload::nvme, Offload::nvme, 0}};
  for (const int ranks : {1, 2, 4}) {
    for (const auto& row : rows) {
      INFO(ranks, " ranks, stage ", row.stage, ", ", name_of(row.optimizer), ", ", name_of(row.parameters));
      on_processes(
          ranks,
          [&](int) {
            const Held before = held();
            Even model;
            model.to(bf16);
            optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
            ZeroOptions o{
                .stage = row.stage,
                .sub_group_size = 8192,
                .offload_optimizer = {.device = row.optimizer,
                                      .nvme_path = folder,
                                      .buffer_count = 3,
                                      .ratio = row.ratio},
                .prefetch_bucket_size = 0,
                .param_persistence_threshold = 0,
                .offload_param = {.device = row.parameters, .nvme_path = folder, .buffer_count = 2, .max_in_cpu = 0}};
            Zero zero(model, optimizer, o);
            for (int step = 0; step < 3; ++step) {
              manual_seed(3);
              sum(square(model(randn({4, 64}).to(bf16)))).backward();
              zero.step();
              if (step == 0) reset_peak_memory();
            }
            const Held now = held() - before;
            const double share = double(psi) / ranks, largest = 512. * 512;
            const bool parameters_away = row.parameters != Offload::none, in_files = row.optimizer == Offload::nvme;
            expect("optimizer", now.optimizer, (1 - row.ratio) * 12 * share);
            expect("parameters", now.parameters, parameters_away ? 0 : row.stage == 3 ? 2 * share : 2 * psi);
            if (parameters_away) LOCKSTEP_CHECK(now.peak <= 2 * largest, "whole at a time: ", now.peak);
            const double tile =
                // Buffers for files: three values per element of a tile, and the parameters.
                (row.ratio > 0 ? 12. * 8192 : 0) + (row.parameters == Offload::nvme ? 2. * 8192 : 0);
            double wanted = in_files ? 3 * tile : row.ratio * 12 * share;
            if (row.parameters == Offload::cpu) wanted += 2 * share;
            if (row.parameters == Offload::nvme) wanted += 2 * (2 * largest / ranks);
            expect("offload", now.offload, wanted);
          },
          120);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("offload: a model larger than a rank's memory limit trains under stage 3 with files, and only then") {
  // Bytes on each of two ranks: parameters, gradients and two moments in f32.
  constexpr double states = 16. * wide * wide * deep / 2;
  const auto run = [&](bool offload) {
    return message([&] {
      dist::spawn(2,
                  [&](int) {
                    set_threads(1);
                    release_cached_memory();  // memory that earlier test cases left
                    const rlim_t limit = rlim_t(status_of("VmData") + int64_t(0.7 * states));
                    const rlimit few{limit, limit};
                    LOCKSTEP_CHECK(setrlimit(RLIMIT_DATA, &few) == 0, "no limit could be set");
                    ZeroOptions o{.stage = 3, .sub_group_size = 1 << 17, .prefetch_bucket_size = wide * wide};
                    if (offload) o = all_in_files(o), o.offload_param.buffer_count = 2;
                    Tower model = built_empty<Tower>();
                    optim::AdamW optimizer(model.parameters(), {.lr = 1e-5});
                    Zero zero(model, optimizer, o);
                    double first = 0, last = 0;
                    for (int step = 0; step < 3; ++step) {
                      manual_seed(3);
                      const Variable loss = mean(square(model(randn({2, wide})) - 1.));
                      last = loss.tensor().item();
                      if (step == 0) first = last;
                      loss.backward();
                      zero.step();
                    }
                    LOCKSTEP_CHECK(last < first, "expected the loss to fall from ", first, ", got ", last);
                  },
                  {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(240)});
    });
  };
  CHECK(run(true) == "(no error)");
  CHECK(run(false) != "(no error)");
}
#endif
