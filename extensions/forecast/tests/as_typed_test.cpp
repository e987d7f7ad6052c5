// The kernels and bytes of a step of `gpt train` for GPT-2 124M, with options as users type them, by a dry run.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/text.h"
#include "extensions/forecast/roofline.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "tensor/ops.h"
#include "tests/output.h"
#include "train/trainer.h"

using namespace lockstep;

namespace {

nn::GPT::Options gpt2() { return {.vocab = 50257, .context = 1024, .layers = 12, .width = 768, .heads = 12}; }

/// The kernels of the last of three steps of 16 x 1,024 tokens. Neither model nor activations take memory.
std::vector<DryKernel> kernels_as_typed() {
  std::vector<DryKernel> last;
  DryRun dry;
  const testing::HeldOutput out;
  train::TrainOptions o;
  o.parallel.ranks = 1, o.device = "cuda", o.batch = 16, o.steps = 3, o.precision = "auto", o.no_graph = true;
  train::start(o, "", [&](train::TrainJob& job) {
    std::shared_ptr<nn::GPT> model;
    {
      const nn::BuildEmpty scope;
      model = std::make_shared<nn::GPT>(gpt2());
    }
    const data::TokenBatches batches(zeros({4096}, {.dtype = i64, .device = cpu}), 5);
    train::Trainer trainer(job, *model,
                           {.batches = [&](int64_t step, int64_t micro,
                                           int64_t n) { return batches.sample(step, micro, n, gpt2().context); },
                            .config = data::Json::Object{{"gradient_clipping", 1}},
                            .callbacks = {{.on_step_end = [&](train::RunState&) { last = dry.take(); }}}});
    trainer.fit();
  });
  return last;
}

}  // namespace

TEST_CASE("as typed: a step of GPT-2 124M has at most 300 launches, and the least bytes of each kernel") {
  const report::DryStep step{.kernels = kernels_as_typed(), .tokens = 16 * 1024};
  const report::Roofline found = report::roofline(step, report::card_of("h200"));
  const std::string text = report::text_of(found, step, report::card_of("h200"), "as typed", "bf16");
  INFO(text);
  CHECK(found.launches <= 300);
  CHECK(found.launches >= 250);
  struct Row {
    const char* kind;
    int64_t calls;
    double megabytes;  // of each call
  };
  for (const Row& row : {Row{"layer_norm", 25, 50}, Row{"add_norm_grad", 25, 100}, Row{"cross_entropy", 1, 3300},
                         Row{"optimizer", 1, 3500}, Row{"embedding_grad", 1, 30}, Row{"column_sums", 24, 88}}) {
    const auto at = std::find_if(found.rows.begin(), found.rows.end(),
                                 [&](const report::RooflineRow& r) { return r.cost.kind == row.kind; });
    CAPTURE(row.kind);
    REQUIRE(at != found.rows.end());
    CHECK(at->calls == row.calls);
    CHECK(at->cost.bytes / double(row.calls) == doctest::Approx(1e6 * row.megabytes).epsilon(0.05));
  }
  // On the card whose measured times are used here, torch.compile took 33.8 ms.
  CHECK(found.seconds <= 28e-3);
}

TEST_CASE("as typed: lockstep roofline shows the kernels of a training step") {
  std::map<std::string, int64_t> launches;
  const auto count = [&](const std::vector<DryKernel>& kernels, int64_t sign) {
    for (const DryKernel& k : kernels) launches[k.name] += sign * report::launches_of({k});
  };
  count(kernels_as_typed(), 1);
  count(report::dry_step(gpt2(), 16, bf16).kernels, -1);
  // The training also brings tokens and targets to the card, and reads the loss and the gradients' norm.
  // A step stores its table of addresses again if addresses change. In a dry run that is up to the operating system.
  launches.erase("numbers");
  std::string found;
  for (const auto& [name, n] : launches)
    if (n != 0) found += name + " " + std::to_string(n) + ", ";
  CHECK(found == "copy from host 2, copy to host 2, fill 1, take_norm -1, ");
}
