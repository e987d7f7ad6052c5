// Accelerator: deals batches to ranks, builds the engine, saves and loads state. See accelerator.h.
#include "extensions/hugging_face/accelerator.h"

#include <algorithm>
#include <iostream>
#include <set>

#include "base/suggest.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "train/json_paths.h"
#include "train/option_group.h"
#include "train/program_values.h"

namespace lockstep::train {

using data::Json;

namespace accelerated {

void refuse_thing(bool prepared) {
  LOCKSTEP_CHECK(!prepared, "[prepare] expected unprepared objects, got one that prepare() returned; pass it once");
  fail(
      "[prepare] expected a model, its optimizer, a data::DataLoader or a schedule, got something else: every rank "
      "would read all of it; put it into a DataLoader, or pass acc.skip(it) to leave it unchanged");
}

std::vector<int64_t> Dealing::deal(int64_t epoch) {
  const std::vector<int64_t> all = order(epoch);
  used = rule();
  samples = int64_t(all.size());
  const data::MicroBatchSampler positions({.samples = samples,
                                           .micro_batch = micro,
                                           .micro_batches = used.accumulation * world,
                                           .world = world,
                                           .rank = rank,
                                           .shuffle = false,
                                           .interleaved = used.interleaved,
                                           .drop_last = drop_last});
  std::vector<int64_t> mine = positions(0);
  for (int64_t& index : mine) index = all[size_t(index)];
  return mine;
}

std::vector<int64_t> Dealing::real(int64_t batch) const {
  const int64_t of_rank = used.accumulation, step = batch / of_rank, i = batch % of_rank;
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < world; ++r) {
    const int64_t at = used.interleaved ? i * world + r : r * of_rank + i;  // index among the step's micro-batches
    counts.push_back(std::clamp<int64_t>(samples - (step * of_rank * world + at) * micro, 0, micro));
  }
  return counts;
}

namespace {

TrainOptions options_of(const AcceleratorOptions& a) {
  const std::vector<std::string> known = with_precisions({"no", "fp16", "bf16"});
  LOCKSTEP_CHECK(std::ranges::count(known, a.mixed_precision), "[Accelerator] expected mixed_precision ", listed(known),
                 ", got ", a.mixed_precision);
  LOCKSTEP_CHECK(a.gradient_accumulation_steps >= 1, "[Accelerator] expected gradient_accumulation_steps >= 1, got ",
                 a.gradient_accumulation_steps);
  TrainOptions o;
  o.config = a.deepspeed_config;
  o.device = a.device;
  const std::string& mixed = a.mixed_precision;
  o.precision = mixed == "no" ? "f32" : mixed == "fp16" ? "f16" : mixed;
  o.names = {{"--precision " + o.precision, "mixed_precision " + mixed},
             {"--accumulate", "gradient_accumulation_steps"},
             {"--steps", "total_steps"}};
  o.parallel.accumulate = a.gradient_accumulation_steps;
  if (a.gradient_accumulation_steps > 1) o.given.push_back("accumulate");
  o.seed = random_state().seed;  // the program's manual_seed()
  return o;
}

dist::ProcessGroup* group_of_environment() {
  if (!dist::is_initialized() && !engine::is_launched()) return nullptr;
  return dist::is_initialized() ? &dist::world() : &dist::init();
}

Json json_of(const std::map<std::string, double>& numbers) { return Json::Object(numbers.begin(), numbers.end()); }

std::map<std::string, double> numbers_of(const Json& json) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : json.as_object()) numbers[name] = value.as_number();
  return numbers;
}

/// Drops the entries of loaders that no longer exist.
void forget_gone(std::vector<AcceleratorState::Kept>& kept) {
  std::erase_if(kept, [](const AcceleratorState::Kept& one) { return one.loader && one.loader->expired(); });
}

}  // namespace

AcceleratorState::AcceleratorState(AcceleratorOptions o, TrainJob* job)
    : options(std::move(o)),
      own_team_(job ? nullptr : std::make_unique<Team>(group_of_environment())),
      own_job_(job ? nullptr : std::make_unique<TrainJob>(options_of(options), *own_team_)),
      job_(job ? job : own_job_.get()),
      scaler({.enabled = job_->autocast() == f16}) {
  LOCKSTEP_CHECK(!job || (options.mixed_precision == "no" && options.gradient_accumulation_steps == 1 &&
                          options.deepspeed_config.empty() && options.device == "cpu"),
                 "[Accelerator] expected precision, accumulation, configuration and device on the command line of the "
                 "job, got them as options too; leave them out of AcceleratorOptions");
  LOCKSTEP_CHECK(
      options.even_batches,
      "[Accelerator] expected even_batches true, got false: ranks with fewer batches would leave the others waiting; "
      "leave it true, and set drop_last in the loader if no sample may be repeated");
  const parallel::Plan& plan = job_->plan();
  LOCKSTEP_CHECK(plan.dp == world(), "[Accelerator] expected a plan of copies (dp, ZeRO), got ", to_string(plan),
                 "; train other plans with a Trainer");
}

engine::EngineBase& AcceleratorState::trained(const char* call) {
  LOCKSTEP_CHECK(engine, "[", call, "] expected an earlier call of prepare() with a model and its optimizer, got none");
  return *engine;
}

void AcceleratorState::note_loader(int64_t batch_size) {
  LOCKSTEP_CHECK(!options.split_batches || batch_size % world() == 0, "[prepare] expected a batch_size that ", world(),
                 " ranks can split, got ", batch_size, "; make it a multiple of the number of ranks");
  if (micro_batch == 0) micro_batch = options.split_batches ? batch_size / world() : batch_size;
}

void AcceleratorState::note_schedule() {
  LOCKSTEP_CHECK(!is_said(job().file(), "scheduler.type"),
                 "[prepare] expected one schedule, got the program's and scheduler.type of ", job().origin(),
                 "; leave one of them out");
}

void AcceleratorState::join(optim::Optimizer& optimizer) {
  LOCKSTEP_CHECK(!engine,
                 "[prepare] expected one optimizer, got another one: an Accelerator trains one model; make "
                 "another Accelerator for a second");
  std::set<const void*> wanted;
  for (const Variable& p : optimizer.parameters()) wanted.insert(p.impl().get());
  const auto found = std::ranges::find_if(models, [&](const Model& model) {
    const auto is_wanted = [&](const Variable& p) { return wanted.count(p.impl().get()); };
    return std::ranges::count_if(model.module->parameters(), is_wanted) == std::ssize(wanted);
  });
  LOCKSTEP_CHECK(
      found != models.end(),
      "[prepare] expected the model of the optimizer's parameters too, got none that has all of them; pass both");
  ProgramValues values{.max_grad_norm = 1};
  if (options.total_steps > 0) values.steps = [n = options.total_steps](int64_t) { return n; };
  if (micro_batch > 0) values.micro_batch = micro_batch;
  PrepareOptions settings{.warmup_steps = options.warmup_steps, .config = Json::Object{{"gradient_clipping", 0.}}};
  if (job().autocast() == f16) settings.grad_scaler = &scaler;
  engine = found->make(prepare_args(job(), *found->module, optimizer, nullptr, nullptr, settings, values));
  LOCKSTEP_CHECK(!engine->wants_metric(), "[prepare] ", job().origin(),
                 ": expected a schedule that follows the step, got scheduler.type ReduceLROnPlateau, whose metric only "
                 "the program has; create it in the program, and pass it to prepare()");
  clipping = engine->config().gradient_clipping;
  if (leads() && micro_batch > 0 && world() * engine->gradient_accumulation_steps() > 1)
    std::cerr << "[accelerator] a step is " << counted(world(), "rank") << " x "
              << counted(engine->gradient_accumulation_steps(), "batch") << " of "
              << engine->train_micro_batch_size_per_gpu() << " = " << engine->train_batch_size() << " samples\n";
}

std::shared_ptr<Dealing> AcceleratorState::deal(const data::Sampler& order, int64_t batch_size, bool drop_last) {
  const std::vector<int64_t> first = order(0);
  const Tensor all = Tensor::from(first, {int64_t(first.size())});
  job().team().check_same("the order of a loader's samples (is it sharded already?)", {&all});
  const auto rule = [this]() -> Dealing::Rule {
    if (!engine || !engine->module().is_training()) return {};
    return {engine->gradient_accumulation_steps(), engine->config().zero_optimization.stage >= 2};
  };
  return std::make_shared<Dealing>(Dealing{.order = order,
                                           .micro = options.split_batches ? batch_size / world() : batch_size,
                                           .world = world(),
                                           .rank = job().team().rank(),
                                           .drop_last = drop_last,
                                           .rule = rule});
}

void AcceleratorState::keep(Kept one) {
  if (!unclaimed.empty() && one.loader) {
    one.load(unclaimed.front());
    unclaimed.erase(unclaimed.begin());
  }
  for (Kept& before : kept)
    if (one.of && before.of == one.of) return void(before = std::move(one));
  kept.push_back(std::move(one));
}

void AcceleratorState::keep_loader(std::function<data::LoaderState(const data::LoaderState* to_load)> access,
                                   std::shared_ptr<void> loader, Dealing* shuffled) {
  keep({.state =
            [access] {
              const data::LoaderState s = access(nullptr);
              return Json(Json::Object{{"seed", int64_t(s.seed)},
                                       {"epoch", s.epoch},
                                       {"samples", s.samples},
                                       {"dataset_size", s.dataset_size}});
            },
        .load =
            [access, shuffled](const Json& json) {
              const data::LoaderState s{.seed = uint64_t(json.at("seed").as_int("seed")),
                                        .epoch = json.at("epoch").as_int("epoch"),
                                        .samples = json.at("samples").as_int("samples"),
                                        .dataset_size = json.at("dataset_size").as_int("dataset_size")};
              access(&s);
              if (shuffled) shuffled->order = data::RandomSampler(s.dataset_size, s.seed);
            },
        .loader = loader});
}

void AcceleratorState::make_current(const std::shared_ptr<Loop>& loop) {
  std::erase_if(loops, [&](const auto& one) { return one.expired() || one.lock() == loop; });
  loops.push_back(loop);
  last_loop = *loop;
}

Loop AcceleratorState::running_loop() const {
  std::optional<Loop> found = last_loop;  // used if all loops have ended
  for (const auto& one : loops)
    if (const auto running = one.lock()) found = *running;
  LOCKSTEP_CHECK(found, "[gather_for_metrics] expected a call inside the loop over a loader; move it there");
  return *found;
}

void AcceleratorState::step() {
  engine::EngineBase& e = trained("step");
  const bool updates_now = e.is_gradient_accumulation_boundary();
  e.step();
  pending = false;
  if (updates_now) e.set_gradient_clipping(clipping);
}

void AcceleratorState::zero_grad() {
  if (pending) trained("zero_grad").zero_grad();
  pending = false;
}

void AcceleratorState::save(const std::string& folder) {
  engine::EngineBase& e = trained("save_state");
  forget_gone(kept);
  Json state(Json::Object{{"accelerator", Json::Array{}}});
  for (const Kept& one : kept) state["accelerator"].push_back(one.state());
  if (job().autocast() == f16) state["scaler"] = json_of(scaler.state());
  e.save_checkpoint(folder, {.client_state = state});
  e.wait_for_checkpoint();
}

void AcceleratorState::load(const std::string& folder) {
  const auto found = trained("load_state").load_checkpoint(folder);
  LOCKSTEP_CHECK(found, "[load_state] expected a checkpoint of save_state() in ", folder, ", got none; check the path");
  const Json& state = found->client_state;
  const auto& theirs = state.at("accelerator", folder).as_array(folder);
  forget_gone(kept);
  const size_t mine = kept.size();
  const bool rest_are_loaders =
      mine <= theirs.size() && std::all_of(theirs.begin() + int64_t(mine), theirs.end(),
                                           [](const Json& one) { return one.find("dataset_size") != nullptr; });
  LOCKSTEP_CHECK(rest_are_loaders,
                 "[load_state] expected as many loaders, schedules and registered objects as were saved, ",
                 theirs.size(), ", got ", mine, "; prepare and register the same ones");
  for (size_t i = 0; i < mine; ++i) kept[i].load(theirs[i]);
  unclaimed.assign(theirs.begin() + int64_t(mine), theirs.end());
  if (const Json* numbers = state.find("scaler"); numbers && job().autocast() == f16)
    scaler.load_state(numbers_of(*numbers));
}

}  // namespace accelerated

PreparedSchedule::PreparedSchedule(accelerated::Shared state, optim::Schedule& schedule)
    : state_(std::move(state)), schedule_(&schedule), taken_(std::make_shared<int64_t>(state_->updates())) {
  state_->keep({[schedule = schedule_, taken = taken_] {
                  return Json(Json::Object{{"taken", *taken}, {"state", accelerated::json_of(schedule->state())}});
                },
                [schedule = schedule_, taken = taken_](const Json& json) {
                  schedule->load_state(accelerated::numbers_of(json.at("state")));
                  *taken = json.at("taken").as_int();
                },
                schedule_});
}

void PreparedSchedule::step(double metric) {
  if (!is_due()) return;
  std::vector<double> sum{metric};
  state_->job().team().sum(sum, "metric of a schedule");
  schedule_->step(sum[0] / state_->job().team().size());
}

bool PreparedSchedule::is_due() {
  if (!state_->options.step_scheduler_with_optimizer) return true;
  state_->trained("step of a schedule");
  if (state_->updates() == *taken_) return false;
  *taken_ = state_->updates();
  return true;
}

void Accelerator::backward(const Variable& loss) {
  engine::EngineBase& e = state_->trained("backward");
  LOCKSTEP_CHECK(state_->holding || e.gradient_accumulation_steps() == 1,
                 "[backward] expected `auto hold = acc.accumulate(model);` in the loop, as ",
                 e.gradient_accumulation_steps(), " batches make a step, got none");
  e.backward(loss);
  state_->pending = true;
}

double Accelerator::clip(double max_norm) {
  engine::EngineBase& e = state_->trained("clip_grad_norm_");
  e.set_gradient_clipping(max_norm);
  return e.get_global_grad_norm();
}

Tensor Accelerator::gather(const Tensor& tensor) const {
  const Tensor part = (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).contiguous();
  Shape shape = part.shape();
  shape[0] *= num_processes();
  const Tensor entire = empty(shape, {.dtype = part.dtype(), .device = part.device()});
  state_->job().mesh().world().all_gather(entire, part, {.tag = "gather"}).wait();
  return entire;
}

Tensor Accelerator::gather_for_metrics(const Tensor& tensor) const {
  const accelerated::Loop loop = state_->running_loop();
  LOCKSTEP_CHECK(tensor.dim() > 0 && tensor.size(0) == loop.rows, "[gather_for_metrics] expected ", loop.rows,
                 " rows, one for each sample of the batch, got ", tensor.shape(), "; give a tensor with these");
  const Tensor entire = gather(tensor);
  std::vector<Tensor> rows;
  for (size_t r = 0; r < loop.real.size(); ++r) rows.push_back(entire.narrow(0, int64_t(r) * loop.rows, loop.real[r]));
  return cat(rows, 0);
}

Tensor Accelerator::reduce(const Tensor& tensor, const std::string& reduction) const {
  LOCKSTEP_CHECK(reduction == "sum" || reduction == "mean", "[reduce] expected sum or mean, got ", reduction);
  const Tensor all = tensor.clone();
  const auto op = reduction == "sum" ? dist::ReduceOp::sum : dist::ReduceOp::mean;
  state_->job().mesh().world().all_reduce(all, {.op = op, .tag = "reduce"}).wait();
  return all;
}

Tensor Accelerator::pad_across_processes(const Tensor& tensor, int64_t dim, Scalar pad_index, bool pad_first) const {
  LOCKSTEP_CHECK(dim >= 0 && dim < tensor.dim(), "[pad_across_processes] expected dim in [0, ", tensor.dim(),
                 "), a dim of shape ", tensor.shape(), ", got ", dim);
  const auto sizes = state_->job().team().gather({double(tensor.size(dim))}, "sizes to pad to");
  const int64_t max_size = int64_t(*std::max_element(sizes.begin(), sizes.end()));
  if (max_size == tensor.size(dim)) return tensor;
  Shape shape = tensor.shape();
  shape[size_t(dim)] = max_size - tensor.size(dim);
  const Tensor padding = full(shape, pad_index, {.dtype = tensor.dtype(), .device = tensor.device()});
  return pad_first ? cat({padding, tensor}, dim) : cat({tensor, padding}, dim);
}

void Accelerator::free_memory() {
  if (state_->engine) state_->engine->close();
  state_->engine = nullptr;
  state_->models.clear();
  state_->kept.clear();
  state_->unclaimed.clear();
  state_->micro_batch = 0;
  state_->pending = false;
}

}  // namespace lockstep::train
