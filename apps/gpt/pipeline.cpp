// Training of gpt in parts: stages of a pipeline (--pipeline N, --plan ...ppN), slices of layers (tpN), sequences that ranks share (cpN), and
// copies of all. The same steps as train.cpp's; with stages the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>

#include "apps/common/progress.h"
#include "apps/gpt/hugging_face.h"
#include "apps/gpt/sharing.h"
#include "apps/gpt/training.h"
#include "autograd/autocast.h"
#include "data/text.h"
#include "engine/pipeline_engine.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "pipeline/gpt.h"
#include "tensor/random.h"
#include "tensor_parallel/apply.h"
#include "trace/trace.h"

namespace apps {

using namespace lockstep;
using pipeline::LayerSpec, pipeline::Values;

namespace {

/// What the command line says, for the engine.
engine::Config config_of_options(const GptOptions& o, const parallel::Plan& plan) {
  engine::Config c;
  c.origin = "the command line";
  c.seed = int64_t(o.common.seed);
  c.train_micro_batch_size_per_gpu = o.batch;
  c.gradient_accumulation_steps = o.common.parallel.accumulate;
  c.gradient_clipping = o.clip;
  c.pipeline.schedule = o.schedule;
  c.pipeline.chunks = o.chunks;
  c.pipeline.partition = o.split;
  engine::ZeroConfig& z = c.zero_optimization;
  z.stage = std::max(plan.zero, 0);
  z.overlap_comm = o.common.parallel.overlap;
  z.reduce_bucket_size = std::max<int64_t>(1, int64_t(o.common.parallel.bucket_mib * (1 << 18)));
  z.ignore_unused_parameters = false;
  const std::string& offload = o.common.parallel.offload;
  if (offload == "none") return c;
  z.offload_optimizer.device = offload.substr(0, offload.find(':'));
  if (offload.starts_with("nvme:")) z.offload_optimizer.nvme_path = offload.substr(5);
  return c;
}

class Training {
 public:
  Training(GptOptions& o, const std::optional<engine::Config>& config, const parallel::Plan& plan, const Team& team)
      : o_(o), has_config_(config.has_value()), plan_(plan), team_(team), to_device_(device_of(o.common, team)), tokenizer_(load_tokenizer(o.tokenizer.empty() ? o.init : o.tokenizer)) {
    const Tensor all = tokenizer_->encode_tensor(load_text(o.text));
    whole_ = make_gpt(o, tokenizer_->vocab_size());
    shape_ = whole_->o;
    check_plan(plan, sizes_of(o, shape_, team.size()));
    dist::ProcessGroup& world = team.group() ? *team.group() : engine::init_distributed();
    mesh_ = std::make_unique<parallel::Mesh>(plan, world);
    sharing_.emplace(o, team, *whole_, mesh_.get());
    whole_->to(to_device_.device());
    set_float32_matmul_precision(o.precision == "tf32" ? MatmulPrecision::tf32 : MatmulPrecision::full);
    parameters_ = sharing_->parameter_count();
    for (auto& p : whole_->named_parameters()) names_.push_back(p.name), is_matrix_.push_back(p.variable.dim() >= 2);
    text_ = split_text(o, *tokenizer_, all, *whole_);
    team.check_same(o.text.empty() ? "the text" : o.text, {&all});
    make_engine(config);
    count_ = engine_->gradient_accumulation_steps() * plan.dp;
  }

  void run();

 private:
  void make_engine(const std::optional<engine::Config>& config);
  void write_trace(int64_t step, double loss);
  double evaluate(int64_t most);
  pipeline::Sample part_of(const data::Example& sample);
  engine::PipelineEngine::WholeState whole_state();
  void save(Run& run, int64_t step);
  int64_t resume(Run& run);

  template <class Fn>
  auto precise(const Fn& fn) const {
    const Autocast autocast(o_.precision == "f16" ? f16 : bf16, o_.precision == "f16" || o_.precision == "bf16");
    return fn();
  }

  const GptOptions& o_;
  const bool has_config_;
  const parallel::Plan plan_;
  const Team& team_;
  data::ToDevice to_device_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::shared_ptr<nn::GPT> whole_;  // its layers are taken out
  nn::GPT::Options shape_;
  int64_t parameters_ = 0, count_ = 0;
  std::vector<std::string> names_;
  std::vector<bool> is_matrix_;
  TextParts text_;
  std::unique_ptr<parallel::Mesh> mesh_;
  std::optional<Sharing> sharing_;
  optim::GradScaler scaler_{{.enabled = o_.precision == "f16"}};
  std::unique_ptr<engine::PipelineEngine> engine_;
  std::ofstream trace_;
};

void Training::make_engine(const std::optional<engine::Config>& config) {
  engine::PipelineArgs args{.config = config ? *config : config_of_options(o_, plan_), .mesh = mesh_.get(), .grad_scaler = o_.precision == "f16" ? &scaler_ : nullptr};
  if (plan_.tp > 1) {
    const auto sliced = tensor_parallel::apply(*whole_, tensor_parallel::gpt_plan(*whole_), mesh_->tp());
    for (const auto& s : sliced.slices()) args.slices[s.name] = {s.cut.whole, s.cut.dim, tensor_parallel::ranges(s.cut, plan_.tp, mesh_->at().tp)};
  }
  std::vector<LayerSpec> layers = pipeline::gpt_layers(whole_, o_.checkpoint_blocks);
  for (LayerSpec& layer : layers) {
    layer.with([this, forward = layer.forward](nn::Module* m, const Values& in) {
      Values out = precise([&] { return forward ? forward(m, in) : Values{m->call(in.at(0))}; });
      if (NoGrad::grad_enabled() && mesh_->at().tp == 0) sharing_->count(*m);  // slices have the same experts; a second run is the one with gradients
      return out;
    });
  }
  const auto loss = [this, of = pipeline::gpt_loss(*whole_)](const Values& out, const std::vector<Tensor>& targets) { return precise([&] { return of(out, targets); }); };
  if (!config || config->optimizer.type.empty()) {
    args.optimizer = [this](nn::Module& stage) { return make_optimizer(o_, stage, team_); };
    if (!config || config->scheduler.type.empty()) {
      args.lr_scheduler = [this](optim::Optimizer& optimizer) { return std::make_unique<optim::LambdaLR>(optimizer, [this](int64_t step) { return lr_factor(o_, step); }); };
    }
  }
  engine_ = std::make_unique<engine::PipelineEngine>(engine::PipelineModule{.layers = std::move(layers), .loss_fn = loss, .num_stages = plan_.pp}, std::move(args));
  whole_->blocks.items.clear();  // what other ranks have
  for (Variable* other : {&whole_->tokens_table.weight, &whole_->position_table.weight, &whole_->head}) *other = Variable();
}

void Training::write_trace(int64_t step, double loss) {
  if (o_.common.parallel.trace_bits.empty()) return;
  std::vector<int64_t> hashes(names_.size());
  const auto put = [&](const std::string& name, const Tensor& tensor) { hashes[size_t(std::find(names_.begin(), names_.end(), name) - names_.begin())] = int64_t(hash_of(tensor)); };
  if (plan_.tp > 1) for (const auto& [name, tensor] : engine_->whole_state().model) put(name, tensor);
  else for (auto& p : engine_->pipeline().module().named_parameters()) put(p.name, p.variable.tensor());
  write_trace_line(trace_, step, loss, names_, merge_hashes(team_, names_, hashes, step));
}

/// This rank's tokens, on its device.
pipeline::Sample Training::part_of(const data::Example& sample) {
  const data::Example part = to_device_(sharing_->part_of(sample));
  return {{part.input}, {part.target}};
}

/// As evaluate_text(), with windows of whole batches as micro-batches.
double Training::evaluate(int64_t most) {
  const int64_t context = std::min(shape_.context, text_.validation.numel() - 1), batch = engine_->train_micro_batch_size_per_gpu();
  const data::TextDataset windows(text_.validation, {.context = context, .stride = context});
  const int64_t used = most > 0 ? std::min(most * batch, windows.size()) : windows.size(), needed = (used + batch - 1) / batch, each = (needed + plan_.dp - 1) / plan_.dp;
  const auto window = [&](int64_t i) -> std::optional<pipeline::Sample> {
    i = std::min(i, needed - 1);  // copies that have less to do repeat the last one, which is not counted
    std::vector<int64_t> indices;
    for (int64_t k = i * batch; k < std::min((i + 1) * batch, used); ++k) indices.push_back(k * windows.size() / used);
    return part_of(*windows.get_batch(indices));
  };
  const std::vector<double> losses = engine_->pipeline().eval_batch(window, int(each));
  double sum = 0;
  for (int64_t i = 0; i < needed; ++i) sum += losses[size_t(i)] * double(std::min(batch, used - i * batch) * context);
  return sum / double(used * context);
}

/// In the order in which one process writes it.
engine::PipelineEngine::WholeState Training::whole_state() {
  auto state = engine_->whole_state();
  const auto place = [&](const std::string& name) { return std::find(names_.begin(), names_.end(), name) - names_.begin(); };
  std::stable_sort(state.model.begin(), state.model.end(), [&](const auto& a, const auto& b) { return place(a.first) < place(b.first); });
  const auto group = [&](const std::string& key) {  // "state.NAME.KEY"
    const auto i = place(key.substr(6, key.rfind('.') - 6));
    return std::pair(i < std::ptrdiff_t(names_.size()) && !is_matrix_[size_t(i)], i);
  };
  std::stable_sort(state.optimizer.tensors.begin(), state.optimizer.tensors.end(), [&](const auto& a, const auto& b) { return group(a.first) < group(b.first); });
  return state;
}

void Training::save(Run& run, int64_t step) {
  set_random_step(uint64_t(step));
  if (!run.has_folder()) return;
  if (has_config_) {
    engine_->save_checkpoint(run.path("checkpoints"));
    engine_->wait_for_checkpoint();
  }
  const auto state = whole_state();  // for eval and sample, and for runs of any plan
  std::map<std::string, double> numbers{{"step", double(step)}};
  if (!has_config_) numbers["scaler.scale"] = scaler_.scale_value(), numbers["scaler.growth_tracker"] = double(scaler_.growth_tracker());
  run.save(state.model, state.optimizer, numbers);
}

int64_t Training::resume(Run& run) {
  if (has_config_) {
    LOCKSTEP_CHECK(engine_->load_checkpoint(run.path("checkpoints")), run.path("checkpoints"), ": --resume found no checkpoint");
    return engine_->global_steps();
  }
  nn::State model;
  optim::OptimizerState optimizer;
  const auto numbers = run.load(model, optimizer);
  const int64_t first = int64_t(numbers.at("step"));
  engine_->load_whole_state(model, optimizer, first);
  engine_->lr_scheduler()->load_state({{"step", double(first)}, {"base.0", o_.lr}, {"base.1", o_.lr}});
  if (numbers.count("scaler.scale")) scaler_.load_state({{"scale", numbers.at("scaler.scale")}, {"growth_tracker", numbers.at("scaler.growth_tracker")}});
  return first;
}

void Training::run() {
  const data::TokenBatches batches(text_.training, o_.common.seed);
  Run run(o_.common, team_, config_of(o_, *whole_, count_), fixed_options(o_));
  const int64_t first = o_.common.resume ? resume(run) : 0;
  const bool talks = team_.leads() && !o_.common.json;
  const int64_t batch = engine_->train_micro_batch_size_per_gpu();
  if (talks) {
    fmt::print("{} tokens to learn, {} for validation; {} parameters\n", text_.training.numel(), text_.validation.numel(), parameters_);
    std::string cuts;
    for (const int b : engine_->pipeline().bounds()) cuts += fmt::format("{}{}", cuts.empty() ? "" : ", ", b);
    fmt::print("plan {}, {}, cut at layers {}; {} micro-batches of {} sequences a step\n", to_string(plan_), engine_->config().pipeline.schedule, cuts, count_, batch);
    std::fflush(stdout);
  }
  if (!o_.common.parallel.trace_bits.empty() && team_.leads()) {
    trace_.open(o_.common.parallel.trace_bits, std::ios::trunc);
    LOCKSTEP_CHECK(trace_, o_.common.parallel.trace_bits, ": --trace-bits cannot write this file");
  }

  std::optional<Interrupt> interrupt;
  if (team_.owns_process()) interrupt.emplace();
  const double tokens_per_step = double(batch * count_ * shape_.context);
  Progress progress(first, o_.steps, "tokens", tokens_per_step, !team_.leads());
  double shown_loss = NAN, evaluation_seconds = 0, idle = 0;
  int64_t step = first;
  for (bool stop = false; step < o_.steps && !stop;) {
    const trace::Step traced(step, to_device_.device());
    const double lr = engine_->get_lr()[0];
    const double loss = engine_->train_batch([&](int64_t micro) -> std::optional<pipeline::Sample> {
      return part_of(batches.sample(step, micro, batch, shape_.context));
    });
    idle += engine_->pipeline().bubble();
    std::vector<double> stops{double(Interrupt::requested())};
    team_.sum(stops, "Ctrl-C");
    stop = stops[0] > 0;
    trace::counter("loss", {{"loss", loss}});
    write_trace(++step, loss);
    shown_loss = std::isnan(shown_loss) ? loss : 0.95 * shown_loss + 0.05 * loss;
    progress.show(step, fmt::format("loss {:.4f}", shown_loss));
    Json line(Json::Object{});
    line["step"] = step;
    line["loss"] = loss;
    line["lr"] = lr;
    sharing_->report(line, count_ * plan_.cp);
    line["grad_norm"] = engine_->get_global_grad_norm();
    if (engine_->fp16_enabled()) line["loss_scale"] = engine_->loss_scale();
    if (step % o_.eval_every == 0 && step < o_.steps) {
      const double before = progress.seconds(), val = evaluate(o_.eval_batches);
      evaluation_seconds += progress.seconds() - before;
      line["val_loss"] = val;
      progress.clear();
      if (talks) fmt::print("step {:6}  loss {:.4f}  validation loss {:.4f}  {:.0f} tokens/s\n", step, shown_loss, val, progress.rate());
      std::fflush(stdout);
    }
    run.metric(line);
    if (o_.save_every > 0 && step % o_.save_every == 0 && step < o_.steps) save(run, step);
  }
  const double seconds = progress.seconds() - evaluation_seconds;
  progress.clear();
  save(run, step);
  if (step < o_.steps && team_.leads()) std::cerr << "stopped at step " << step << (run.has_folder() ? "; the checkpoint is written, go on with --resume\n" : "; nothing was saved, as there is no --out\n");
  const double val = evaluate(0);
  if (!o_.export_to.empty()) {
    const auto state = whole_state();
    if (team_.leads()) {
      nn::GPT model(shape_);
      model.load_state(state.model);
      save_hugging_face(model, o_.export_to);
    }
  }
  if (!team_.leads()) return;
  Json result(Json::Object{});
  result["program"] = "gpt";
  result["steps"] = step;
  result["ranks"] = team_.size();
  result["plan"] = to_string(plan_);
  result["loss"] = shown_loss;
  result["val_loss"] = val;
  result["parameters"] = parameters_;
  result["tokens_per_second"] = double(step - first) * tokens_per_step / std::max(seconds, 1e-9);
  result["seconds"] = seconds;
  sharing_->summarize(result);
  result["bubble"] = idle / double(std::max<int64_t>(step - first, 1));
  result["peak_memory_mib"] = double(memory_report(to_device_.device()).total.peak) / 1048576;
  print_result(result, o_.common.json);
}

}  // namespace

void gpt_train_parts(GptOptions o, const std::optional<engine::Config>& config, parallel::Plan plan) {
  std::string asked = o.plan.empty() ? "" : "--plan " + o.plan;
  for (const auto& [option, n] : {std::pair("--pipeline", plan.pp), std::pair("--context-parallel", plan.cp), std::pair("--tensor-parallel", plan.tp)}) {
    if (o.plan.empty() && (n > 1 || o.given.count(option))) asked += str(asked.empty() ? "" : " ", option, " ", n);
  }
  LOCKSTEP_CHECK(!o.sequence_parallel, asked, " keeps what lies between slices whole on each of them so far: leave out --sequence-parallel");
  LOCKSTEP_CHECK(o.optimizer.name == "adamw", "--optimizer ", o.optimizer.name, " sums gradients over all ranks, but those of ", asked, " hold different layers: leave one of them out");
  const bool plain = o.checkpoints.every == 1 && !o.checkpoints.cpu_checkpointing && !o.checkpoints.contiguous_memory_optimization && !o.checkpoints.profile;
  LOCKSTEP_CHECK(plain, asked, " recomputes every block where it is: leave out --checkpoint-every, --checkpoint-cpu, --checkpoint-contiguous and --checkpoint-profile");
  LOCKSTEP_CHECK(o.common.parallel.strategy == "auto" || o.common.parallel.strategy == "ddp", asked, " needs ranks that train together, leave out --parallel ", o.common.parallel.strategy);
  LOCKSTEP_CHECK(o.common.parallel.offload == "none" || o.common.parallel.offload == "cpu" || (o.common.parallel.offload.starts_with("nvme:") && o.common.parallel.offload.size() > 5),
                 "--offload: expected none, cpu or nvme:FOLDER, got '", o.common.parallel.offload, "'");
  ParallelOptions ranks = o.common.parallel;
  run_team(ranks, [&](Team& team) {
    parallel::Plan here = plan;
    if (here.dp == 0) {  // what is left
      const int copy = plan.pp * plan.cp * plan.tp;
      LOCKSTEP_CHECK(team.size() % copy == 0, asked, " expected a number of ranks that ", copy, " divides, got ", team.size(), "; start it with lockstep run -n N -- ..., or give --ranks N");
      here.dp = team.size() / copy;
    }
    GptOptions own = o;  // Training writes into them, and ranks may be threads
    Training(own, config, here, team).run();
  });
}

}  // namespace apps
