// Offload changes where data is stored, but no bits: optimizer state and shards in host memory or in files, with every
// I/O engine and size.
#include <doctest/doctest.h>

#include "tests/zero/util.h"
#include "zero/offload/file_queue.h"

using namespace lockstep;
using namespace testing;
using zero::AioOptions;
using zero::Offload;
using zero::ZeroOptions;

namespace {

/// Where optimizer state and parameters are.
struct Row {
  const char* name;
  ZeroOptions options;
};
ZeroOptions with(int stage, const Row& row) {
  ZeroOptions o = row.options;
  o.stage = stage;
  o.reduce_bucket_size = 9000;
  o.param_persistence_threshold = 300;
  if (stage < 3) o.offload_param = {}, o.offload_optimizer.ratio = 1;
  return o;
}

/// Tiles of `tile` elements of optimizer state, which is on `device`.
ZeroOptions tiles_on(Offload device, int64_t tile = 4096, double ratio = 1) {
  return {.sub_group_size = tile, .offload_optimizer = {.device = device, .nvme_path = folder, .ratio = ratio}};
}
/// The same with parameters elsewhere.
ZeroOptions with_parameters(ZeroOptions o, const zero::OffloadParam& parameters) {
  o.offload_param = parameters;
  return o;
}
zero::OffloadParam parameters_on(Offload device, int buffers = 2, int64_t in_memory = 0) {
  return {
      .device = device, .nvme_path = folder, .buffer_count = buffers, .buffer_size = 1 << 20, .max_in_cpu = in_memory};
}
constexpr auto cpu_memory = Offload::cpu, nvme = Offload::nvme;
constexpr int64_t small = 4096, entire = 1 << 30;  // elements of a tile

const std::vector<Row> any_stage{
    {"none, small tiles", {.sub_group_size = small}},
    {"cpu", tiles_on(cpu_memory, entire)},
    {"cpu, small tiles", tiles_on(cpu_memory)},
    {"nvme", tiles_on(nvme, entire)},
    {"nvme, small tiles", tiles_on(nvme)},
    {"nvme, one buffer",
     {.sub_group_size = small, .offload_optimizer = {.device = nvme, .nvme_path = folder, .buffer_count = 1}}},
    {"nvme, two buffers, threads",
     {.sub_group_size = small,
      .offload_optimizer = {.device = nvme, .nvme_path = folder, .buffer_count = 2},
      .aio = {.engine = AioOptions::Engine::threads}}},
    {"nvme, small blocks",
     {.sub_group_size = 8192,
      .offload_optimizer = {.device = nvme, .nvme_path = folder},
      .aio =
          {.block_size = 4096, .queue_depth = 3, .thread_count = 2, .single_submit = true, .overlap_events = false}}},
    {"nvme, nothing at a time",
     {.overlap_comm = false,
      .sub_group_size = small,
      .offload_optimizer = {.device = nvme,
                            .nvme_path = folder,
                            .pin_memory = false,
                            .pipeline_read = false,
                            .pipeline_write = false,
                            .fast_init = true}}},
};
const std::vector<Row> stage3_only{
    {"half of it on cpu", tiles_on(cpu_memory, small, 0.5)},
    {"0.7 of it in a file", tiles_on(nvme, small, 0.7)},
    {"none of it", tiles_on(nvme, small, 0)},
    {"parameters on cpu", {.offload_param = parameters_on(cpu_memory)}},
    {"parameters in a file", {.offload_param = parameters_on(nvme)}},
    {"parameters in a file, one buffer", {.offload_param = parameters_on(nvme, 1)}},
    {"parameters in a file, nothing ahead", {.prefetch_bucket_size = 0, .offload_param = parameters_on(nvme, 5)}},
    {"parameters in a file, no overlap", {.overlap_comm = false, .offload_param = parameters_on(nvme, 5)}},
    {"some parameters in a file", with_parameters(tiles_on(cpu_memory), parameters_on(nvme, 5, 500))},
    {"both in files", with_parameters(tiles_on(nvme), parameters_on(nvme, 5))},
    {"both in files, threads",
     {.sub_group_size = small,
      .offload_optimizer = {.device = nvme, .nvme_path = folder},
      .aio = {.engine = AioOptions::Engine::threads},
      .offload_param = parameters_on(nvme, 3)}},
    {"both on cpu", with_parameters(tiles_on(cpu_memory), parameters_on(cpu_memory))},
};
std::vector<Row> rows_of(int stage) {
  std::vector<Row> rows = any_stage;
  if (stage == 3) rows.insert(rows.end(), stage3_only.begin(), stage3_only.end());
  return rows;
}
const Row nvme_everywhere{"both in files", with_parameters(tiles_on(nvme), parameters_on(nvme))};

}  // namespace

TEST_CASE("offload: every place, tile, engine and order of reading and writing: bit-identical to one process") {
  for (const DType dtype : {f32, bf16}) {
    const ZeroPlan plan{.dtype = dtype, .max_norm = dtype == f32 ? 0.05 : 0, .steps = 3};
    const Tensors one = train(divided(plan, 1, {.stage = 0}));
    for (const int stage : {0, 1, 2, 3}) {
      for (const Row& row : rows_of(stage)) {
        for (const int ranks : {1, 2, 4}) {
          INFO(dtype, ", stage ", stage, ", ", row.name, ", ", ranks, " ranks");
          CHECK(differing(one, train(divided(plan, ranks, with(stage, row)))) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: every optimizer, cut into shards or owned whole, in memory, in files and in tiles") {
  const std::vector<std::pair<const char*, MakeOptimizer>> makers{
      {"SGD", maker<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1})},
      {"SGD without state", maker<optim::SGD>(optim::SGDOptions{.lr = 0.1})},
      {"Adam", maker<optim::Adam>(optim::AdamOptions{.lr = 1e-2, .amsgrad = true})},
      {"of norms", maker<ByNorm>(ByNormOptions{.lr = 1e-2})}};
  const Row in_memory{"in memory", {}}, ratio{"ratio", tiles_on(nvme, small, 0.6)};
  for (const auto& [name, make] : makers) {
    for (const DType dtype : {f32, bf16}) {
      const ZeroPlan plan{.dtype = dtype, .steps = 3, .make = make};
      const Tensors one = train(plan);
      for (const int stage : {0, 1, 2, 3}) {
        for (const Row& row : {in_memory, nvme_everywhere, any_stage[2], ratio}) {
          if (stage % 2 == 0 && std::string(row.name) != "in memory") continue;
          INFO(name, ", stage ", stage, ", ", dtype, ", ", row.name);
          CHECK(differing(one, train(divided(plan, 4, with(stage, row)))) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: two optimizers, one that takes whole matrices and AdamW for the rest, in memory and in files") {
  for (const double max_norm : {0., 0.1}) {
    const Tensors one = train_two(1, {.stage = 0}, max_norm);
    for (const int stage : {1, 2, 3}) {
      for (const int ranks : {1, 2, 4}) {
        CHECK(differing(one, train_two(ranks, {.stage = stage, .param_persistence_threshold = 500}, max_norm)) == "");
        CHECK(differing(one, train_two(ranks, with(stage, nvme_everywhere), max_norm)) == "");
      }
    }
  }
}

TEST_CASE("offload: f64, and a momentum that begins when the file has no room for it") {
  const ZeroPlan plan{.dtype = f64, .steps = 2};
  CHECK(differing(train(divided(plan, 1, {.stage = 0})), train(divided(plan, 2, with(3, nvme_everywhere)))) == "");
  CHECK_ERROR(on_ranks(1,
                       [](int) {
                         NetOnZero on(with(1, nvme_everywhere), f32, maker<optim::SGD>(optim::SGDOptions{.lr = 0.1}));
                         on.train(0);
                         on.optimizer->set(0, "momentum", 0.9);
                         on.train(1);
                       }),
              "the optimizer now keeps 'momentum_buffer' for ");
}

TEST_CASE("zero: pieces of state cover everything once, and load at any stage, place and number of ranks") {
  using Plans = std::vector<std::pair<int, ZeroOptions>>;
  const auto at = [](int stage) { return ZeroOptions{.stage = stage, .param_persistence_threshold = 500}; };
  const Plans in_memory{{1, at(0)}, {2, at(1)}, {4, at(2)}, {2, at(3)}, {4, at(3)}};
  const Plans in_places{{1, with(0, any_stage[4])},   {2, with(1, any_stage[4])}, {2, with(3, nvme_everywhere)},
                        {4, with(3, stage3_only[1])}, {4, with(2, any_stage[2])}, {2, {.stage = 3}}};
  for (const DType dtype : {f32, bf16}) {
    const Tensors one = train({.accumulation = 4, .options = ZeroOptions{.stage = 0}, .dtype = dtype});
    for (const Plans& plans : {in_memory, in_places}) {
      for (const auto& [ranks, options] : plans) {
        Tensors saved;
        std::map<std::string, double> numbers;
        std::mutex mutex;
        on_ranks(ranks, [&, &options = options](int) {
          NetOnZero on(options, dtype);
          for (const int step : {0, 1}) on.train(step);
          const auto pieces = on.zero.state();
          const std::lock_guard lock(mutex);
          for (const auto& piece : pieces) {
            const Tensor place = place_of(saved, piece);
            LOCKSTEP_CHECK(all(isnan(place)).item<bool>(), piece.name, ": elements that two ranks have");
            place.copy_(piece.tensor);
          }
          numbers = on.zero.numbers();
        });
        CHECK(saved.size() == (dtype == f32 ? 24 : 32));
        for (const auto& [name, tensor] : saved) CHECK_MESSAGE(!any(isnan(tensor)).item<bool>(), name);
        for (const auto& [to_ranks, to_options] : plans) {
          INFO(dtype, ", ", ranks, " ranks, stage ", options.stage, " to ", to_ranks, " and ", to_options.stage);
          CHECK(differing(one, parameters_after(to_ranks, to_options, dtype, [&](NetOnZero& on) {
                            for (const int step : {7, 8}) on.train(step);  // existing state is overwritten
                            on.optimizer->set_lr(0.5);
                            load_from(on.zero, saved, numbers);
                            for (const int step : {2, 3}) on.train(step);
                          })) == "");
        }
      }
    }
  }
}

TEST_CASE("offload: invalid settings are rejected with a remedy") {
  zero::OffloadParam too_small = parameters_on(nvme);
  too_small.buffer_size = 1000;
  const std::pair<ZeroOptions, std::string> rows[] = {
      {{.stage = 3, .offload_optimizer = {.device = nvme}},
       "offload_optimizer.device nvme needs offload_optimizer.nvme_path"},
      {{.stage = 3, .offload_param = {.device = nvme}}, "offload_param.device nvme needs offload_param.nvme_path"},
      {{.stage = 3, .offload_optimizer = {.device = Offload(7)}},
       "expected offload_optimizer.device none, cpu or nvme, got 7"},
      {{.stage = 2, .offload_param = parameters_on(cpu_memory)}, "offload_param needs stage 3"},
      {{.stage = 1, .offload_optimizer = {.ratio = 0.5}}, "ratio 0.5 needs stage 3, got stage 1"},
      {{.stage = 3, .offload_optimizer = {.ratio = 1.5}}, "ratio from 0 to 1, got 1.5"},
      {{.stage = 3, .offload_optimizer = {.ratio = NAN}}, "ratio from 0 to 1, got nan"},
      {{.stage = 3, .offload_optimizer = {.buffer_count = 0}}, "buffer_count >= 1, got 0"},
      {{.stage = 3, .offload_param = {.buffer_count = 0}}, "buffer_count >= 1"},
      {{.stage = 3, .sub_group_size = 0}, "sub_group_size > 0, got 0"},
      {{.stage = 3, .aio = {.block_size = 1000}}, "block_size to be a multiple of 4096 up to 1 GiB, got 1000"},
      {{.stage = 3, .aio = {.queue_depth = 0}}, "queue_depth from 1 to 1024, got 0"},
      {{.stage = 3, .aio = {.thread_count = 65}}, "thread_count from 1 to 64, got 65"},
      {{.stage = 3, .offload_param = too_small}, "offload_param.buffer_size 1000 is too small for "},
      {{.stage = 3, .offload_param = too_small}, "expected at least 8192"},
      {{.stage = 3, .offload_optimizer = {.device = nvme, .nvme_path = "/no/such/folder"}},
       "expected a folder where a file can be made for the optimizer state of rank"},
      {{.stage = 3, .offload_param = {.device = nvme, .nvme_path = "/proc", .max_in_cpu = 0}},
       "expected a folder where a file can be made for the parameter shards of rank"},
  };
  for (auto [options, error] : rows) {
    options.param_persistence_threshold = 0;
    for (const int ranks : {1, 2})
      if (ranks == 2 || error != "expected at least 8192")
        CHECK_ERROR(on_ranks(ranks, [&, &o = options](int) { NetOnZero on(o); }), error);
  }
}
