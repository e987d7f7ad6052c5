// What an engine that runs out of memory is told: changes of the configuration, with the bytes that plan() forecasts.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "extensions/figures/quantity.h"
#include "extensions/forecast/plan.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"
#include "tensor/memory.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::engine;
using namespace testing;

namespace {

const nn::GPT::Options few{.vocab = 301, .context = 16, .layers = 4, .width = 40, .heads = 4};

/// The message of an OutOfMemory on rank 0 after a forward and a backward under this configuration.
std::string said_under(const std::string& body, int ranks) {
  std::vector<std::string> said(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](int rank) {
    manual_seed(1);
    nn::GPT model(few);
    const std::string json = R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, )" + body + "}";
    auto [engine, optimizer, loader, schedule] =
        initialize(model, {.config = config_from_json(json), .log = [](const std::string&) {}});
    reset_peak_memory(cpu);
    engine.backward(mean(engine(zeros({4, few.context}, {.dtype = i64}))));
    said[size_t(rank)] = message([] { fail_out_of_memory("[test] wanted 3 bytes"); });
  });
  return said[0];
}

/// Bytes of state of a rank under a configuration.
int64_t bytes(const std::string& body, int ranks, bool host_too) {
  const Config config = config_from_json(R"({"train_micro_batch_size_per_gpu": 4, )" + body + "}");
  const Forecast forecast = plan(config, shape_of<nn::GPT>(few), ranks);
  const RankBytes& rank = forecast.fullest();
  return rank.total() + (host_too ? rank.optimizer_elsewhere + rank.parameters_elsewhere : 0);
}

/// The bytes that the line which begins with `change` says are saved; "" if there is no such line.
std::string saved_by(const std::string& said, const std::string& change) {
  const size_t at = said.find("  " + change + ": saves "), end = said.find('\n', at);
  return at == said.npos ? "" : said.substr(at + change.size() + 10, end - at - change.size() - 10);
}

}  // namespace

TEST_CASE("out of memory: what each change of the state saves on a rank") {
  const std::string adamw = R"("optimizer": {"type": "AdamW"}, )";
  const auto zero = [&](const std::string& body) { return adamw + R"("zero_optimization": {)" + body + "}"; };
  const std::string nvme = R"("device": "nvme", "nvme_path": ".")";
  struct Row {
    int ranks;
    std::string now, change, then;  // then: "": the change is not offered
  };
  for (const Row& row : {
           Row{2, zero(""), "zero_optimization.stage from 0 to 1", zero(R"("stage": 1)")},
           Row{2, zero(R"("stage": 1, "reduce_bucket_size": 20000)"), "zero_optimization.stage from 1 to 2",
               zero(R"("stage": 2, "reduce_bucket_size": 20000)")},
           // a bucket holds all of this small model, so the higher stages add a copy of it
           Row{2, zero(R"("stage": 1)"), "zero_optimization.stage from 1 to 2", ""},
           Row{2, zero(R"("stage": 1)"), "zero_optimization.stage from 1 to 3", ""},
           Row{1, zero(""), "zero_optimization.stage from 0 to 1", ""},
           Row{2, zero(R"("stage": 3)"), "zero_optimization.stage from 3 to 4", ""},
           Row{1, zero(""), "zero_optimization.offload_optimizer.device nvme, with nvme_path",
               zero(R"("offload_optimizer": {)" + nvme + "}")},
           // the model computes in host memory: moving state there saves nothing
           Row{1, zero(""), "zero_optimization.offload_optimizer.device cpu", ""},
           Row{2, zero(R"("stage": 3)"), "zero_optimization.offload_param.device nvme, with nvme_path and max_in_cpu 0",
               zero(R"("stage": 3, "offload_param": {"max_in_cpu": 0, )" + nvme + "}")},
       }) {
    CAPTURE(row.now);
    CAPTURE(row.change);
    const std::string found = saved_by(said_under(row.now, row.ranks), row.change);
    if (row.then.empty()) {
      CHECK(found == "");
      continue;
    }
    // Tiles in host memory are part of neither forecast.
    const bool to_file = row.then.find("nvme") != row.then.npos;
    const int64_t now = bytes(row.now, row.ranks, false), then = bytes(row.then, row.ranks, !to_file);
    CHECK(now > then);
    CHECK(found == memory_text(now - then));
  }
}

TEST_CASE("out of memory: what changes of the activations save") {
  const std::string said = said_under(R"("optimizer": {"type": "SGD"})", 1);
  CHECK(said.starts_with("[test] wanted 3 bytes; held now:\ncategory"));
  CHECK(contains(said, "\nTo need less memory, change the configuration; on a rank:\n"));
  const auto activations = double(memory_report().category[size_t(Memory::activation)].peak);
  CHECK(activations > 1e5);
  const std::string halved = "train_micro_batch_size_per_gpu from 4 to 2, and gradient_accumulation_steps from 3 to 6";
  CHECK(saved_by(said, halved) == "about " + memory_text(int64_t(activations / 2)));
  // Of the eight layers that repeat, attention and MLP of four blocks, one holds its activations at a time.
  CHECK(saved_by(said, "activation_checkpointing.enabled") == "up to " + memory_text(int64_t(activations * 7 / 8)));
  CHECK(saved_by(said, "bf16.enabled").starts_with("up to "));
  // The change that saves most comes first.
  CHECK(said.find("activation_checkpointing.enabled") < said.find(halved));
  const std::string low = said_under(R"("optimizer": {"type": "SGD"}, "bf16": {"enabled": true},)"
                                     R"("activation_checkpointing": {"enabled": true})",
                                     1);
  CHECK(saved_by(low, "bf16.enabled") == "");
  CHECK(saved_by(low, "activation_checkpointing.enabled") == "");
}

TEST_CASE("out of memory: an engine that was closed, or that has no optimizer of the configuration") {
  nn::GPT model(few);
  optim::AdamW own(model.parameters(), {.lr = 1e-3});
  on_ranks(1, [&](int) {
    const Config c = config_from_json(R"({"train_batch_size": 4})");
    auto [engine, optimizer, loader, schedule] =
        initialize(model, {.optimizer = &own, .config = c, .log = [](const std::string&) {}});
    const auto said = [] { return message([] { fail_out_of_memory("[test] wanted 3 bytes"); }); };
    // Two moments of 4 bytes for each parameter.
    CHECK(saved_by(said(), "zero_optimization.offload_optimizer.device nvme, with nvme_path") ==
          memory_text(8 * model.parameter_count()));
    engine.close();
    CHECK(!contains(said(), "To need less memory"));
  });
}
