// `lockstep roofline`: lists the kernels of a training step and predicts their time on a GPU.
#include <algorithm>
#include <iostream>

#include "extensions/forecast/programs/forecast_commands.h"
#include "extensions/forecast/roofline.h"
#include "train/model_format.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct RooflineAsked {
  std::string model = "gpt:12x768x12", card = "h200", precision = "bf16";
  int64_t batch = 16, vocab = 50257, context = 1024, kv_heads = 0, inner = 0;
  double dropout = 0;
  bool tied = false, json = false;
};

nn::GPT::Options options_of(const RooflineAsked& o) {
  nn::GPT::Options options =
      train::model_options(o.model, {.vocab = o.vocab, .context = o.context, .dropout = o.dropout});
  options.context = std::min(options.context, o.context);
  if (o.kv_heads > 0) options.kv_heads = o.kv_heads;
  if (o.inner > 0) options.inner = o.inner;
  options.tied |= o.tied;
  LOCKSTEP_CHECK(options.heads % std::max<int64_t>(options.kv_heads, 1) == 0, "--kv-heads expected a divisor of ",
                 options.heads, " heads, got ", options.kv_heads);
  return options;
}

Json to_json(const RooflineAsked& o, const report::DryStep& step, const report::Roofline& found) {
  Json::Array rows;
  for (const report::RooflineRow& row : found.rows)
    rows.push_back(Json::Object{{"kernels", row.cost.kind},
                                {"calls", row.calls},
                                {"launches", row.cost.launches},
                                {"flops", row.cost.flops},
                                {"bytes", row.cost.bytes},
                                {"seconds", row.seconds},
                                {"bound", row.bound}});
  return Json::Object{{"model", o.model},
                      {"card", o.card},
                      {"precision", o.precision},
                      {"parameters", step.parameters},
                      {"tokens", step.tokens},
                      {"kernels", std::move(rows)},
                      {"launches", found.launches},
                      {"flops", found.flops},
                      {"bytes", found.bytes},
                      {"seconds", found.seconds},
                      {"tokens_per_second", found.tokens},
                      {"mfu", found.mfu},
                      {"host_seconds", found.host},
                      {"graph_seconds", found.graph}};
}

void run_roofline(const RooflineAsked& o) {
  const DType dtype = o.precision == "bf16" ? bf16 : o.precision == "f16" ? f16 : f32;
  const report::Card& card = report::card_of(o.card);
  const report::DryStep step = report::dry_step(options_of(o), o.batch, dtype);
  const report::Roofline found = report::roofline(step, card);
  if (o.json) std::cout << to_json(o, step, found).dump() << std::endl;
  else std::cout << report::text_of(found, step, card, o.model, o.precision) << std::flush;
}

}  // namespace

void add_roofline_command(CLI::App& app) {
  const auto o = std::make_shared<RooflineAsked>();
  CLI::App& command = *app.add_subcommand(
      "roofline", "the kernels of a training step, and how long they should take on a card that is not here");
  const OptionGroup add(command);
  add("--model", o->model, "gpt:LAYERSxWIDTHxHEADS, llama:LAYERSxWIDTHxHEADS, or a config.json")->capture_default_str();
  add("--batch", o->batch, "sequences of a step", integer(1, 1 << 20))->capture_default_str();
  add("--context", o->context, "tokens of a sequence", integer(1, 1 << 24))->capture_default_str();
  add("--vocab", o->vocab, "vocabulary size of a model given by its sizes", integer(1, 1 << 24))->capture_default_str();
  add("--kv-heads", o->kv_heads, "heads of keys and values; default: the model's", integer(1, 1 << 12));
  add("--inner", o->inner, "width of the feed-forward layers; default: the model's", integer(1, 1 << 24));
  add("--tied", o->tied, "the head is the embedding table, even if the model has its own head");
  add("--dropout", o->dropout, "dropout of a model given by its sizes")->check(CLI::Range(0., 1.))->default_str("0");
  add("--precision", o->precision, "of parameters and activations: bf16, f16 (both with f32 master weights), f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  add("--device", o->card, "the card: h200, h100, a100")->capture_default_str();
  add("--json", o->json, "one line, a JSON object");
  command.callback([o] { as_usage([&] { run_roofline(*o); }); });
}

}  // namespace apps
