// gpt train --config: the file and the command line, made one.
#include "apps/gpt/options.h"
#include "engine/engine.h"

namespace apps {

using namespace lockstep;

engine::Config read_engine_config(GptOptions& o) {
  engine::Config c = engine::read_config(o.config);
  const auto given = [&](const char* flag) { return o.given.count(flag) > 0; };
  const auto refuse = [&](const char* flag, const std::string& key, const std::string& why) {
    LOCKSTEP_CHECK(!given(flag), flag, " contradicts ", o.config, ": ", key, " ", why, "; leave one of them out");
  };
  // A number that either may say; both must say the same.
  const auto merge = [&](const char* flag, const char* key, auto& option, auto value, const auto& set) {
    if (c.has(key)) {
      LOCKSTEP_CHECK(!given(flag) || option == value, flag, " ", option, " contradicts ", o.config, ", where ", key, " is ", value, "; leave one of them out");
      option = value;
    } else {
      set();
    }
  };
  merge("--seed", "seed", o.common.seed, uint64_t(c.seed), [&] { c.seed = int64_t(o.common.seed); });
  merge("--batch", "train_micro_batch_size_per_gpu", o.batch, c.train_micro_batch_size_per_gpu.value_or(0),
        [&] { if (given("--batch") || !c.train_batch_size) c.train_micro_batch_size_per_gpu = o.batch; });
  merge("--accumulate", "gradient_accumulation_steps", o.common.parallel.accumulate, c.gradient_accumulation_steps.value_or(0),
        [&] { if (given("--accumulate") || !c.train_batch_size) c.gradient_accumulation_steps = o.common.parallel.accumulate; });
  merge("--clip", "gradient_clipping", o.clip, c.gradient_clipping, [&] { c.gradient_clipping = o.clip; });
  merge("--zero", "zero_optimization.stage", o.common.parallel.zero, int(c.zero_optimization.stage), [&] { if (given("--zero")) c.zero_optimization.stage = o.common.parallel.zero; });
  const bool overlap = o.common.parallel.overlap;
  if (given("--overlap")) {
    LOCKSTEP_CHECK(c.zero_optimization.overlap_comm.value_or(overlap) == overlap, overlap ? "--overlap" : "--no-overlap", " contradicts ", o.config, ", where zero_optimization.overlap_comm is ", !overlap,
                   "; leave one of them out");
    c.zero_optimization.overlap_comm = overlap;
  }
  if (given("--bucket-mib")) {
    refuse("--bucket-mib", "zero_optimization.reduce_bucket_size", c.has("zero_optimization.reduce_bucket_size") ? "is there" : "");
    c.zero_optimization.reduce_bucket_size = std::max<int64_t>(1, int64_t(o.common.parallel.bucket_mib * (1 << 18)));
  }
  if (given("--precision")) refuse("--precision", "fp16.enabled and bf16.enabled", "say what parameters are");
  if (o.plan.empty()) merge("--pipeline", "pipeline.stages", o.pipeline, int(c.pipeline.stages), [&] { if (given("--pipeline")) c.pipeline.stages = o.pipeline; });
  merge("--schedule", "pipeline.schedule", o.schedule, c.pipeline.schedule, [&] { c.pipeline.schedule = o.schedule; });
  merge("--split", "pipeline.partition", o.split, c.pipeline.partition, [&] { c.pipeline.partition = o.split; });
  merge("--chunks", "pipeline.chunks", o.chunks, int(c.pipeline.chunks), [&] { c.pipeline.chunks = o.chunks; });
  refuse("--offload", "zero_optimization.offload_optimizer and .offload_param", "say where things are kept");
  if (o.common.parallel.strategy == "dp") refuse("--parallel", "zero_optimization.stage", "says how ranks train together");
  if (!c.optimizer.type.empty()) for (const char* flag : {"--lr", "--betas", "--weight-decay", "--optimizer", "--freeze-step"}) refuse(flag, "optimizer.type", "is " + c.optimizer.type);
  for (const char* flag : {"--warmup", "--min-lr-ratio"}) if (!c.scheduler.type.empty()) refuse(flag, "scheduler.type", "is " + c.scheduler.type);
  if (!c.optimizer.type.empty() && c.scheduler.type.empty()) {
    for (const char* flag : {"--warmup", "--min-lr-ratio"}) refuse(flag, "optimizer.type", "is " + c.optimizer.type + ", without a scheduler");
  }
  o.common.parallel.zero = -1;  // the engine's
  return c;
}

}  // namespace apps
