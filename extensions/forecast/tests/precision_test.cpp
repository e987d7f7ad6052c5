// --precision in dry runs on a card: the casts of a step, and the default.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "extensions/forecast/dry_run.h"
#include "tests/messages.h"
#include "tests/train/precision.h"

using namespace lockstep;
using namespace testing;

namespace {

bool is_short_or_f32(DType dtype) { return dtype == f32 || dtype == f16 || dtype == bf16; }

/// Kernels that convert floats: copies and pointwise operations between two floating dtypes.
int64_t casts_of(const std::vector<DryKernel>& kernels) {
  return std::count_if(kernels.begin(), kernels.end(), [](const DryKernel& k) {
    if (k.name != "copy" && k.name != "pointwise" && k.name != "add") return false;
    std::set<DType> floats;
    for (const DryKernel::Operand& o : k.operands)
      if (is_short_or_f32(o.dtype)) floats.insert(o.dtype);
    return floats.size() > 1;
  });
}

}  // namespace

TEST_CASE("precision: a step in bf16 has at most ten casts") {
  const std::pair<std::string, nn::GPT::Options> models[] = {{"GPT", sizes_of_gpt()}, {"Llama", sizes_of_llama()}};
  for (const auto& [name, sizes] : models) {
    DryRun dry;
    for (const char* precision : {"auto", "bf16", "f32", "f16"}) {
      train::TrainOptions o = precise(precision, 3);
      o.device = "cuda", o.no_graph = true, o.json = false;
      const bool by_default = o.precision == "auto", is_bf16 = by_default || o.precision == "bf16";
      int64_t casts = 0;
      const PrecisionRun run = train_precisely(sizes, o, [&](train::Trainer& trainer, const train::RunState&) {
        CHECK(trainer.engine().module().parameters()[0].dtype() == (is_bf16 ? bf16 : f32));
        casts = casts_of(dry.take());
      });
      INFO(name, ", ", precision, ": ", casts);
      if (is_bf16) CHECK(casts <= 10);
      else if (o.precision == "f32") CHECK(casts == 0);
      else CHECK(casts > 40);  // Autocast casts often; this shows that casts_of() counts
      const std::string line = "precision bf16 (the default on this card; --precision f32 chooses f32)\n";
      CHECK((run.out.rfind(line, 0) == 0) == by_default);
      if (!is_bf16) CHECK(!contains(run.out, "precision"));
    }
  }
}

TEST_CASE("precision: the default is f32 on the CPU, and what a configuration says everywhere") {
  struct Row {
    const char* device;
    std::vector<std::string> set;
    DType expected;
  };
  for (const Row& row : std::vector<Row>{{"cpu", {}, f32},
                                         {"cuda", {}, bf16},
                                         {"cuda", {"bf16.enabled=false"}, f32},
                                         {"cuda", {"bf16.enabled=true"}, bf16},
                                         {"cuda", {"fp16.enabled=true"}, f16},
                                         {"cuda", {"fp16.enabled=auto", "bf16.enabled=auto"}, bf16},
                                         {"cpu", {"fp16.enabled=auto", "bf16.enabled=auto"}, f32}}) {
    DryRun dry;
    train::TrainOptions o = precise("auto", 1);
    o.device = row.device, o.set = row.set;
    train::start(o, "", [&](train::TrainJob& job) { CHECK(engine::parameter_dtype(job.config()) == row.expected); });
  }
}
