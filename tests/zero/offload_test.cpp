// Offload changes where data is stored, but no bits: optimizer state and shards in host memory or in files, with every
// I/O engine and size.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/zero/util.h"
#include "zero/offload/file_queue.h"

using namespace lockstep;
using namespace testing;
using zero::AioOptions;
using zero::Offload;
using zero::ZeroOptions;

namespace {

struct Row {
  const char* name;
  std::function<void(ZeroOptions&)> set;
};

void optimizer_to(ZeroOptions& o, Offload device, int64_t tile = 4096) {
  o.offload_optimizer.device = device;
  o.offload_optimizer.nvme_path = folder;
  o.sub_group_size = tile;
}
void parameters_to(ZeroOptions& o, Offload device, int64_t in_memory = 0, int buffers = 2) {
  o.offload_param = {
      .device = device, .nvme_path = folder, .buffer_count = buffers, .buffer_size = 1 << 20, .max_in_cpu = in_memory};
}

const std::vector<Row> any_stage{
    {"none, small tiles", [](ZeroOptions& o) { optimizer_to(o, Offload::none); }},
    {"cpu", [](ZeroOptions& o) { optimizer_to(o, Offload::cpu, 1 << 30); }},
    {"cpu, small tiles", [](ZeroOptions& o) { optimizer_to(o, Offload::cpu); }},
    {"nvme", [](ZeroOptions& o) { optimizer_to(o, Offload::nvme, 1 << 30); }},
    {"nvme, small tiles", [](ZeroOptions& o) { optimizer_to(o, Offload::nvme); }},
    {"nvme, one buffer",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme);
       o.offload_optimizer.buffer_count = 1;
     }},
    {"nvme, two buffers, threads",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme);
       o.offload_optimizer.buffer_count = 2;
       o.aio.engine = AioOptions::Engine::threads;
     }},
    {"nvme, small blocks",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme, 8192);
       o.aio = {
           .block_size = 4096, .queue_depth = 3, .thread_count = 2, .single_submit = true, .overlap_events = false};
     }},
    {"nvme, nothing at a time",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme);
       o.offload_optimizer.pipeline_read = o.offload_optimizer.pipeline_write = o.offload_optimizer.pin_memory = false;
       o.offload_optimizer.fast_init = true;
       o.overlap_comm = false;
     }},
};
const std::vector<Row> stage3_only{
    {"half of it on cpu",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::cpu);
       o.offload_optimizer.ratio = 0.5;
     }},
    {"0.7 of it in a file",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme);
       o.offload_optimizer.ratio = 0.7;
     }},
    {"none of it",
     [](ZeroOptions& o) {
       optimizer_to(o, Offload::nvme);
       o.offload_optimizer.ratio = 0;
     }},
    {"parameters on cpu", [](ZeroOptions& o) { parameters_to(o, Offload::cpu); }},
    {"parameters in a file", [](ZeroOptions& o) { parameters_to(o, Offload::nvme); }},
    {"parameters in a file, one buffer", [](ZeroOptions& o) { parameters_to(o, Offload::nvme, 0, 1); }},
    {"parameters in a file, nothing ahead",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::nvme, 0, 5);
       o.prefetch_bucket_size = 0;
     }},
    {"parameters in a file, no overlap",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::nvme, 0, 5);
       o.overlap_comm = false;
     }},
    {"some parameters in a file",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::nvme, 500, 5);
       optimizer_to(o, Offload::cpu);
     }},
    {"both in files",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::nvme, 0, 5);
       optimizer_to(o, Offload::nvme);
     }},
    {"both in files, threads",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::nvme, 0, 3);
       optimizer_to(o, Offload::nvme);
       o.aio.engine = AioOptions::Engine::threads;
     }},
    {"both on cpu",
     [](ZeroOptions& o) {
       parameters_to(o, Offload::cpu);
       optimizer_to(o, Offload::cpu);
     }},
};
std::vector<Row> rows_of(int stage) {
  std::vector<Row> rows = any_stage;
  if (stage == 3) rows.insert(rows.end(), stage3_only.begin(), stage3_only.end());
  return rows;
}
ZeroOptions with(int stage, const Row& row) {
  ZeroOptions o{.stage = stage, .reduce_bucket_size = 9000, .param_persistence_threshold = 300};
  row.set(o);
  return o;
}

const Row nvme_everywhere{"both in files", [](ZeroOptions& o) {
                            optimizer_to(o, Offload::nvme);
                            if (o.stage == 3) parameters_to(o, Offload::nvme, 0, 2);
                          }};

}  // namespace

TEST_CASE("offload: every place, tile, engine and order of reading and writing: the bits of one process") {
  for (const DType dtype : {f32, bf16}) {
    const double max_norm = dtype == f32 ? 0.05 : 0;
    const Tensors one = train({.options = ZeroOptions{.stage = 0}, .dtype = dtype, .max_norm = max_norm, .steps = 3});
    for (const int stage : {0, 1, 2, 3}) {
      for (const Row& row : rows_of(stage)) {
        for (const auto& [ranks, accumulation] : {std::pair{1, 8}, {2, 4}, {4, 2}}) {
          CAPTURE(dtype);
          CAPTURE(stage);
          CAPTURE(row.name);
          CAPTURE(ranks);
          CHECK(differing(one, train({.ranks = ranks,
                                      .accumulation = accumulation,
                                      .options = with(stage, row),
                                      .dtype = dtype,
                                      .max_norm = max_norm,
                                      .steps = 3})) == "");
        }
      }
    }
  }
}

TEST_CASE("offload: every optimizer, in files and in tiles") {
  const std::vector<std::pair<const char*, MakeOptimizer>> makers{
      {"SGD",
       [](auto p) {
         return std::make_unique<optim::SGD>(std::move(p),
                                             optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
       }},
      {"SGD without state",
       [](auto p) { return std::make_unique<optim::SGD>(std::move(p), optim::SGDOptions{.lr = 0.1}); }},
      {"Adam",
       [](auto p) {
         return std::make_unique<optim::Adam>(std::move(p), optim::AdamOptions{.lr = 1e-2, .amsgrad = true});
       }},
      {"Adagrad",
       [](auto p) {
         return std::make_unique<optim::Adagrad>(std::move(p), optim::AdagradOptions{.initial_accumulator = 0.1});
       }},
      {"RMSprop",
       [](auto p) {
         return std::make_unique<optim::RMSprop>(std::move(p),
                                                 optim::RMSpropOptions{.momentum = 0.5, .centered = true});
       }},
      {"Lion", [](auto p) { return std::make_unique<optim::Lion>(std::move(p), optim::LionOptions{.lr = 1e-3}); }},
      {"LAMB", [](auto p) {
         return std::make_unique<optim::LAMB>(std::move(p), optim::LAMBOptions{.lr = 1e-2, .weight_decay = 0.1});
       }}};
  for (const auto& [name, make] : makers) {
    for (const DType dtype : {f32, bf16}) {
      const Tensors one = train({.options = ZeroOptions{.stage = 0}, .dtype = dtype, .steps = 3, .make = make});
      for (const int stage : {1, 3}) {
        for (const Row& row : {nvme_everywhere, any_stage[2], Row{"ratio", [](ZeroOptions& o) {
                                                                    optimizer_to(o, Offload::nvme);
                                                                    if (o.stage == 3) o.offload_optimizer.ratio = 0.6;
                                                                  }}}) {
          CAPTURE(name);
          CAPTURE(stage);
          CAPTURE(dtype);
          CAPTURE(row.name);
          CHECK(differing(one, train({.ranks = 2,
                                      .accumulation = 4,
                                      .options = with(stage, row),
                                      .dtype = dtype,
                                      .steps = 3,
                                      .make = make})) == "");
        }
      }
    }
  }
  const Tensors one = train_two(1, {.stage = 0});
  for (const int stage : {1, 2, 3})
    for (const int ranks : {1, 2, 4}) CHECK(differing(one, train_two(ranks, with(stage, nvme_everywhere))) == "");
}

TEST_CASE("offload: f64, and a momentum that begins when the file has no room for it") {
  const Tensors one = train({.options = ZeroOptions{.stage = 0}, .dtype = f64, .steps = 2});
  CHECK(
      differing(
          one, train({.ranks = 2, .accumulation = 4, .options = with(3, nvme_everywhere), .dtype = f64, .steps = 2})) ==
      "");
  const std::string error = message([] {
    on_ranks<int>(1, [](int) {
      Net net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      Zero zero(net, sgd, with(1, nvme_everywhere));
      for (int step = 0; step < 2; ++step) {
        loss_of_micro_batch(net, step, 0).backward();
        zero.step();
        sgd.set(0, "momentum", 0.9);
      }
      return 0;
    });
  });
  CHECK(contains(error, "the optimizer now keeps 'momentum_buffer' for "));
}

TEST_CASE("offload: state goes out of one place into another with the same bits") {
  for (const DType dtype : {f32, bf16}) {
    const Tensors one = train({.accumulation = 4, .options = ZeroOptions{.stage = 0}, .dtype = dtype});
    const std::vector<std::pair<int, ZeroOptions>> plans{{1, with(0, any_stage[4])},    {2, with(1, any_stage[4])},
                                                         {2, with(3, nvme_everywhere)}, {4, with(3, stage3_only[1])},
                                                         {4, with(2, any_stage[2])},    {2, {.stage = 3}}};
    const auto train_on = [&](Net& net, Zero& zero, int first) {
      for (int step = first; step < first + 2; ++step) {
        const int accumulation = 4 / zero.group().size();
        backwards(zero, accumulation, [&](int64_t micro) { loss_of_micro_batch(net, step, micro, dtype).backward(); });
        zero.step({.grad_scale = 1. / accumulation});
      }
    };
    for (const auto& [ranks, options] : plans) {
      std::map<std::string, Tensor> saved;
      std::map<std::string, double> numbers;
      std::mutex mutex;
      on_ranks<int>(ranks, [&, &options = options](int) {
        manual_seed(1);
        Net net;
        net.to(dtype);
        const auto optimizer = adamw(net.parameters());
        Zero zero(net, *optimizer, options);
        train_on(net, zero, 0);
        const auto pieces = zero.state();
        const std::lock_guard lock(mutex);
        for (const auto& piece : pieces) {
          Tensor& all = saved[piece.name];
          if (!all.defined()) all = full({numel_of(piece.shape)}, NAN, {.dtype = piece.tensor.dtype()});
          all.narrow(0, piece.range.begin, piece.range.size()).copy_(piece.tensor);
        }
        numbers = zero.numbers();
        return 0;
      });
      CHECK(saved.size() == (dtype == f32 ? 24 : 32));
      for (const auto& [name, tensor] : saved) CHECK_MESSAGE(!any(isnan(tensor)).item<bool>(), name);
      for (const auto& [to_ranks, to_options] : plans) {
        const auto all = on_ranks<Tensors>(to_ranks, [&, &to_options = to_options](int) {
          manual_seed(17);
          Net net;
          net.to(dtype);
          const auto optimizer = adamw(net.parameters());
          Zero zero(net, *optimizer, to_options);
          train_on(net, zero, 7);  // existing state is overwritten
          for (const auto& piece : zero.state(true))
            piece.tensor.copy_(saved.at(piece.name).narrow(0, piece.range.begin, piece.range.size()));
          zero.load_numbers(numbers);
          zero.loaded();
          train_on(net, zero, 2);
          const auto whole = zero.gathered();
          return copy_parameters(net);
        });
        CAPTURE(dtype);
        CAPTURE(ranks);
        CAPTURE(options.stage);
        CAPTURE(to_ranks);
        CAPTURE(to_options.stage);
        CHECK(differing(one, all[0]) == "");
      }
    }
  }
}

TEST_CASE("offload: invalid settings are rejected with a remedy") {
  struct Bad {
    std::function<void(ZeroOptions&)> set;
    const char* error;
  };
  const std::vector<Bad> rows{
      {[](ZeroOptions& o) { o.offload_optimizer.device = Offload::nvme; },
       "offload_optimizer.device nvme needs offload_optimizer.nvme_path"},
      {[](ZeroOptions& o) { o.offload_param.device = Offload::nvme; },
       "offload_param.device nvme needs offload_param.nvme_path"},
      {[](ZeroOptions& o) { o.offload_optimizer.device = Offload(7); },
       "expected offload_optimizer.device none, cpu or nvme, got 7"},
      {[](ZeroOptions& o) {
         o.stage = 2;
         parameters_to(o, Offload::cpu);
       },
       "offload_param needs stage 3"},
      {[](ZeroOptions& o) {
         o.stage = 1;
         o.offload_optimizer.ratio = 0.5;
       },
       "ratio 0.5 needs stage 3, got stage 1"},
      {[](ZeroOptions& o) { o.offload_optimizer.ratio = 1.5; }, "ratio from 0 to 1, got 1.5"},
      {[](ZeroOptions& o) { o.offload_optimizer.ratio = NAN; }, "ratio from 0 to 1, got nan"},
      {[](ZeroOptions& o) { o.offload_optimizer.buffer_count = 0; }, "buffer_count >= 1, got 0"},
      {[](ZeroOptions& o) { o.offload_param.buffer_count = 0; }, "buffer_count >= 1"},
      {[](ZeroOptions& o) { o.sub_group_size = 0; }, "sub_group_size > 0, got 0"},
      {[](ZeroOptions& o) { o.aio.block_size = 1000; }, "block_size to be a multiple of 4096 up to 1 GiB, got 1000"},
      {[](ZeroOptions& o) { o.aio.queue_depth = 0; }, "queue_depth from 1 to 1024, got 0"},
      {[](ZeroOptions& o) { o.aio.thread_count = 65; }, "thread_count from 1 to 64, got 65"},
      {[](ZeroOptions& o) {
         parameters_to(o, Offload::nvme);
         o.offload_param.buffer_size = 1000;
       },
       "offload_param.buffer_size 1000 is too small for "},
      {[](ZeroOptions& o) {
         parameters_to(o, Offload::nvme);
         o.offload_param.buffer_size = 1000;
       },
       "expected at least 8192"},
      {[](ZeroOptions& o) {
         optimizer_to(o, Offload::nvme);
         o.offload_optimizer.nvme_path = "/no/such/folder";
       },
       "expected a folder where a file can be made for the optimizer state of rank"},
      {[](ZeroOptions& o) {
         parameters_to(o, Offload::nvme);
         o.offload_param.nvme_path = "/proc";
       },
       "expected a folder where a file can be made for the parameter shards of rank"},
  };
  for (const Bad& row : rows) {
    for (const int ranks : {1, 2}) {
      const std::string error = message([&] {
        on_ranks<int>(ranks, [&](int) {
          Net net;
          optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
          ZeroOptions o{.stage = 3, .param_persistence_threshold = 0};
          row.set(o);
          const Zero zero(net, optimizer, o);
          return 0;
        });
      });
      CAPTURE(row.error);
      if (ranks == 2 || !contains(row.error, "at least 8192")) CHECK_MESSAGE(contains(error, row.error), error);
    }
  }
}
