#include "apps/gpt/sharing.h"

#include <algorithm>

#include "tensor/ops.h"

namespace apps {

using namespace lockstep;

void add_sharing_options(CLI::App& train, GptOptions& o) {
  const std::string context = "Context parallelism";
  train
      .add_option("--context-parallel", o.context_parallel, "ranks that share each sequence, cpN of --plan; the others train on other micro-batches")
      ->check(apps::whole(1, 4096))
      ->excludes(train.get_option("--plan"))
      ->capture_default_str()
      ->group(context);
  train
      .add_option("--context-attention", o.context_attention,
                  "how they attend to all of it: ring (keys and values go round) or ulysses (heads against tokens)")
      ->check(CLI::IsMember({"ring", "ulysses"}))
      ->capture_default_str()
      ->group(context);
  train.add_option("--context-order", o.context_order, "which tokens a rank has: contiguous, or zigzag (ring: equal work; its default)")
      ->check(CLI::IsMember({"contiguous", "zigzag"}))
      ->group(context);
  const std::string experts = "Experts";
  auto* number = train.add_option("--experts", o.experts, "experts in place of the MLP of some blocks (0: none)")
                     ->check(apps::whole(0, 65536))
                     ->capture_default_str()
                     ->group(experts);
  const auto add = [&](CLI::Option* option) { option->capture_default_str()->needs(number)->group(experts); };
  add(train.add_option("--top-k", o.expert.top_k, "experts of each token")->check(apps::whole(1, 65536)));
  add(train.add_option("--expert-every", o.expert_every, "which blocks have experts: the last of every so many")->check(apps::whole(1, 10000)));
  add(train.add_option("--expert-parallel", o.expert_parallel, "neighbouring ranks that share the experts")->check(apps::whole(1, 4096)));
  add(train
          .add_option("--capacity-factor", o.expert.capacity_factor,
                      "tokens that an expert takes from a rank while training, times tokens x top-k / experts")
          ->check(apps::number(1e-6, 1e6)));
  add(train.add_option("--eval-capacity-factor", o.expert.eval_capacity_factor, "the same in evaluation")->check(apps::number(1e-6, 1e6)));
  add(train.add_option("--min-capacity", o.expert.min_capacity, "at least so many")->check(apps::whole(0, apps::most_size)));
  train.add_flag("!--no-drop-tokens", o.expert.drop_tokens, "experts take all that choose them")->needs(number)->group(experts);
  add(train.add_option("--balance-coef", o.expert.balance_coef, "of the load-balancing loss")->check(apps::number(0, 1e6)));
  add(train.add_option("--z-coef", o.expert.z_coef, "of the z-loss, which keeps the gate's logits small")->check(apps::number(0, 1e6)));
  add(train.add_option("--gate-noise", o.gate_noise, "none; jitter: of the gate's input; rsample: Gumbel noise on its logits")
          ->check(CLI::IsMember({"none", "jitter", "rsample"})));
  train.add_flag("--residual-experts", o.expert.use_residual, "an MLP for every token beside the experts")->needs(number)->group(experts);
}

sequence::ContextOptions context_options(const GptOptions& o) {
  sequence::ContextOptions options{.kind = o.context_attention == "ring" ? sequence::Kind::ring : sequence::Kind::ulysses};
  if (!o.context_order.empty()) options.order = o.context_order == "zigzag" ? sequence::Order::zigzag : sequence::Order::contiguous;
  return options;
}

void check_sharing(const GptOptions& o) {
  const auto refuse = [](bool wrong, const auto&... message) { LOCKSTEP_CHECK(!wrong, message...); };
  const ParallelOptions& p = o.common.parallel;
  const bool by_plan = !o.plan.empty();
  if (o.context_parallel == 1) {
    for (const char* option : {"--context-attention", "--context-order"}) {
      refuse(o.given.count(option), option, " is of shared sequences; add ", by_plan ? "cpN to --plan" : "--context-parallel N");
    }
  } else {
    refuse(p.strategy == "dp" || p.strategy == "none", by_plan ? "--plan " + o.plan : str("--context-parallel ", o.context_parallel), " is for ranks, leave out --parallel ", p.strategy);
    refuse(o.context_attention == "ulysses" && o.context_order == "zigzag",
           "--context-attention ulysses puts sequences together in the order of the ranks, leave out --context-order zigzag");
  }
  if (o.experts == 0) return;
  refuse(o.expert.top_k > o.experts, "--top-k ", o.expert.top_k, " of --experts ", o.experts, ": a token cannot go to more experts than there are");
  refuse(o.experts % o.expert_parallel != 0, "--expert-parallel ", o.expert_parallel, " ranks cannot share --experts ", o.experts, " evenly");
  refuse(o.tensor_parallel > 0, "--experts does not go with --tensor-parallel; with --plan dpN+tpN it does");
  refuse(p.strategy == "dp", "--experts does not go with --parallel dp, which copies models by their options; use ranks");
  refuse(!o.init.empty() || !o.export_to.empty(), "--experts does not go with --init and --export: Hugging Face's GPT-2 has none");
  if (o.expert_parallel == 1) return;
  refuse(p.strategy == "none", "--expert-parallel is for ranks, leave out --parallel none");
  refuse(!p.trace_bits.empty(), "--trace-bits compares runs bit for bit, and experts over ranks sum in another order; use --expert-parallel 1");
  refuse(std::set<std::string>{"sgd", "adam", "adamw"}.count(o.optimizer.name) == 0,
         "--expert-parallel goes with --optimizer sgd, adam and adamw, got ", o.optimizer.name, ", which moves gradients of all ranks itself");
}

void describe_sharing(Json& c, const GptOptions& o) {
  if (o.experts == 0) return;
  c["experts"] = o.experts;
  c["expert_every"] = o.expert_every;
  c["top_k"] = o.expert.top_k;
  c["eval_capacity_factor"] = o.expert.eval_capacity_factor;
  c["min_capacity"] = o.expert.min_capacity;
  c["drop_tokens"] = o.expert.drop_tokens;
  c["residual_experts"] = o.expert.use_residual;
}

void add_saved_experts(nn::GPT& model, const Json& c, const std::string& path) {
  if (!c.find("experts")) return;
  moe::Options options{.experts = c.at("experts", path).as_int(),
                       .top_k = c.at("top_k", path).as_int(),
                       .eval_capacity_factor = c.at("eval_capacity_factor", path).as_number(),
                       .min_capacity = c.at("min_capacity", path).as_int(),
                       .drop_tokens = c.at("drop_tokens", path).as_bool(),
                       .use_residual = c.at("residual_experts", path).as_bool()};
  moe::add_experts(model, options, c.at("expert_every", path).as_int());
}

Sharing::Sharing(GptOptions& o, const Team& team, nn::GPT& model, const parallel::Mesh* mesh) : o_(o), team_(team), model_(model) {
  const int samples = team.size() / o.context_parallel;
  LOCKSTEP_CHECK(mesh || team.size() % o.context_parallel == 0, "--context-parallel ", o.context_parallel, " does not divide the ", team.size(),
                 team.size() == 1 ? " rank" : " ranks", "; start it with lockstep run -n N -- ..., or give --ranks N");
  LOCKSTEP_CHECK(mesh || samples % o.expert_parallel == 0, "--expert-parallel ", o.expert_parallel, " does not divide the ", samples,
                 samples == 1 ? " rank" : " ranks", o.context_parallel > 1 ? " that do not share sequences" : "", "; start it with lockstep run -n N -- ..., or give --ranks N");
  if (mesh) mesh_ = {std::shared_ptr<void>(), mesh};
  else if (o.context_parallel * o.expert_parallel > 1) {
    mesh_ = std::make_shared<parallel::Mesh>(parallel::Plan{.dp = samples, .cp = o.context_parallel, .ep = o.expert_parallel}, *team.group());
  }
  if (o.experts > 0) {
    o.expert.experts = o.experts;
    o.expert.noise = o.gate_noise == "jitter" ? moe::Noise::jitter : o.gate_noise == "rsample" ? moe::Noise::rsample : moe::Noise::none;
    if (o.expert_parallel > 1) o.common.parallel.experts = mesh_;
    moe::add_experts(model, o.expert, o.expert_every, o.expert_parallel > 1 ? std::shared_ptr<dist::ProcessGroup>(mesh_, &mesh_->ep()) : nullptr);
    tokens_.assign(size_t(o.experts) + 2, 0);
  }
  if (o.context_parallel == 1) return;
  const int64_t parts = o.context_parallel * (context_options(o).order_or_default() == sequence::Order::zigzag ? 2 : 1);
  LOCKSTEP_CHECK(model.o.context % parts == 0, "--context ", model.o.context, " cannot be cut into ", parts, " parts for --context-parallel ",
                 o.context_parallel, "; the next that can is ", (model.o.context / parts + 1) * parts);
  const std::shared_ptr<dist::ProcessGroup> ranks(mesh_, &mesh_->cp());
  if (mesh) sequence::share_sequences(model, ranks, context_options(o));
  else context_.emplace(model, ranks, context_options(o));
  o.common.parallel.sharing = o.context_parallel;
}

data::Example Sharing::part_of(const data::Example& sample) const {
  if (o_.context_parallel == 1) return sample;
  const auto part = [&](const Tensor& x) { return sequence::slice(x, 1, o_.context_parallel, mesh_->at().cp, context_options(o_).order_or_default()); };
  return {part(sample.input), part(sample.target)};
}

Variable Sharing::with_aux_loss(const Variable& loss) {
  if (o_.experts == 0) return loss;
  count(model_);
  return add(loss, moe::aux_loss(model_).to(loss.dtype()));
}

void Sharing::count(nn::Module& part) {
  if (o_.experts == 0) return;
  for (const moe::Layer* layer : moe::layers_of(part)) {
    aux_losses_.push_back(layer->aux_loss.tensor());
    for (size_t e = 0; e < layer->routing.chosen.size(); ++e) tokens_[e] += double(layer->routing.chosen[e]);
    tokens_[size_t(o_.experts)] += double(layer->routing.token.size() + size_t(layer->routing.dropped()));
    tokens_.back() += double(layer->routing.dropped());
  }
}

void Sharing::report(Json& line, int64_t times) {
  if (o_.experts == 0) return;
  std::vector<double> all = tokens_;
  all.push_back(0);
  for (const Tensor& aux : aux_losses_) all.back() += aux.item() / double(times);
  team_.sum(all, "experts");
  std::fill(tokens_.begin(), tokens_.end(), 0);
  aux_losses_.clear();
  const size_t n = size_t(o_.experts);
  const double total = std::max(all[n], 1.0);
  last_aux_ = all.back();
  last_busiest_ = *std::max_element(all.begin(), all.begin() + int64_t(n)) * double(n) / total;
  last_dropped_ = all[n + 1] / total;
  line["aux_loss"] = last_aux_;
  Json::Array counts;
  for (size_t e = 0; e < n; ++e) counts.emplace_back(int64_t(all[e]));
  line["expert_tokens"] = Json(std::move(counts));
  line["dropped"] = last_dropped_;
}

void Sharing::summarize(Json& result) const {
  if (o_.experts == 0) return;
  result["aux_loss"] = last_aux_;
  result["busiest_expert"] = last_busiest_;  // its tokens, times those of an even share
  result["dropped"] = last_dropped_;
}

TextLoss Sharing::evaluate(const Tensor& tokens, int64_t batches, const Team& team, data::ToDevice& to_device) {
  std::optional<sequence::ContextParallel::Whole> whole;
  if (context_) whole.emplace(*context_);
  return evaluate_text(model_, tokens, o_.batch, batches, team, to_device, has_spread_experts());
}

std::unique_ptr<nn::GPT> Sharing::whole() const {
  auto whole = std::make_unique<nn::GPT>(model_.o);
  moe::add_experts(*whole, o_.expert, o_.expert_every);
  moe::copy_whole(*whole, model_);
  return whole;
}

int64_t Sharing::parameter_count() const {
  int64_t count = model_.parameter_count();
  for (const moe::Layer* layer : moe::layers_of(model_)) count += (layer->o.experts - int64_t(layer->experts.size())) * layer->experts[0]->parameter_count();
  return count;
}

}  // namespace apps
