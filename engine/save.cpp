// Saves an engine's state as a checkpoint, and loads it. A checkpoint contains, by name:
//
//   tensors    model.NAME, optimizer.KEY.NAME      each rank saves the shards that it owns by ZeRO
//   numbers    engine.*, schedule*.*, scaler.*, random.*, data.*, optimizer.*
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "checkpoint/exchange.h"
#include "data/safetensors.h"
#include "dist/control.h"
#include "engine/impl.h"
#include "nn/named_fields.h"
#include "tensor/random.h"

namespace lockstep::engine {

using checkpoints::integer;

namespace {

/// Maps each further name of a tied parameter to its first name, under which the parameter is saved.
std::map<std::string, std::string> tied_names(nn::Module& model) {
  std::map<std::string, std::string> aliases;
  std::map<const void*, std::string> first;
  for (const nn::NamedField& f : nn::named_fields(model)) {
    if (!f.parameter) continue;
    const auto [known, is_new] = first.try_emplace(f.key(), f.name);
    if (!is_new && known->second != f.name) aliases["model." + f.name] = "model." + known->second;
  }
  return aliases;
}

/// Names of the frozen parameters, spelled as by model.named_parameters().
std::set<std::string> frozen_names(nn::Module& model) {
  std::set<std::string> names;
  for (const auto& p : model.named_parameters())
    if (!p.variable.requires_grad()) names.insert("model." + p.name);
  return names;
}

checkpoints::Piece as_piece(const zero::StatePiece& p) {
  return {.name = p.name,
          .shape = p.shape,
          .dtype = p.tensor.dtype(),
          .begin = p.range.begin,
          .end = p.range.end,
          .tensor = p.tensor};
}

void put(checkpoints::Numbers& to, const std::string& prefix, const std::map<std::string, double>& values) {
  for (const auto& [key, value] : values) to[prefix + key] = value;
}
std::map<std::string, double> with_prefix(const checkpoints::Numbers& numbers, const std::string& prefix) {
  std::map<std::string, double> found;
  for (const auto& [key, value] : numbers)
    if (key.starts_with(prefix)) found[key.substr(prefix.size())] = checkpoints::number(numbers, key);
  return found;
}

}  // namespace

std::vector<checkpoints::Piece> EngineBase::Impl::pieces(const std::set<std::string>& without) {
  std::vector<checkpoints::Piece> all;
  for (const zero::StatePiece& piece : zero ? zero->state() : exchange->state()) {
    if (without.count(piece.name) || (part && !part->leads(piece.name))) continue;
    if (!part) all.push_back(as_piece(piece));
    else
      for (checkpoints::Piece& one : part->full_pieces(as_piece(piece))) all.push_back(std::move(one));
  }
  // Only replica 0 saves buffers. Buffers of replicas may differ: batch norm's statistics depend on the micro-batches.
  if (group->rank() == 0)
    for (const auto& b : model.named_buffers())
      all.push_back(checkpoints::full("model." + b.name, b.tensor.contiguous()));
  return all;
}

checkpoints::Numbers EngineBase::Impl::own_numbers() const {
  checkpoints::Numbers numbers;
  if (has_state()) put(numbers, "", zero ? zero->numbers() : exchange->numbers());
  return numbers;
}

checkpoints::Contents EngineBase::Impl::contents(const SaveArgs& args) {
  checkpoints::Contents c;
  const std::set<std::string> frozen = args.exclude_frozen_parameters ? frozen_names(model) : std::set<std::string>{};
  c.pieces = pieces(frozen);
  for (const Participating& one : participants)
    for (const auto& [name, tensor] : one.participant->state()) c.pieces.push_back(checkpoints::full(name, tensor));
  for (const auto& [name, to] : tied_names(model))
    if (!frozen.count(to)) c.aliases[name] = to;
  c.numbers = own_numbers();
  for (size_t i = 0; i < schedules.size(); ++i) put(c.numbers, str("schedule", i, "."), schedules[i]->state());
  if (scaler) put(c.numbers, "scaler.", scaler->state());
  c.numbers["engine.global_steps"] = global_steps;
  c.numbers["engine.micro_steps"] = micro_steps;
  c.numbers["engine.skipped_steps"] = skipped_steps;
  c.numbers["engine.global_samples"] = global_samples;
  const RandomState random = random_state();
  c.numbers["random.seed"] = int64_t(random.seed);
  // Random numbers continue at the start of this step, since ranks differ in their positions within a step.
  c.numbers["random.step"] = global_steps;
  if (loader && (!part || part->has_data)) {
    const data::LoaderState at = loader->state();
    c.numbers["data.seed"] = int64_t(at.seed);
    c.numbers["data.epoch"] = at.epoch;
    const int64_t unused = int64_t(micros.size()) * replicas() * *config.train_micro_batch_size_per_gpu;
    // Do not count the samples of an incomplete step: after loading, the data loader starts with them again.
    c.numbers["data.samples"] = std::max<int64_t>(at.samples - unused, 0);
    c.numbers["data.dataset_size"] = at.dataset_size;
  }
  c.client_state = args.client_state;
  c.plan = part ? str(part->text, ":", world.size(), "x", accumulation)
                : str(zero ? str("zero", zero->stage()) : exchange->kind(), ":", group->size(), "x", accumulation);
  return c;
}

void EngineBase::save_checkpoint(const std::string& dir, const SaveArgs& args) {
  Impl& m = *impl_;
  m.check_open("save_checkpoint");
  LOCKSTEP_CHECK(!dir.empty(), "[save_checkpoint] expected a folder, got an empty name");
  LOCKSTEP_CHECK(m.pending == 0,
                 "[save_checkpoint] expected a call after step(), got one after a backward(); call step() first");
  if (!m.micros.empty())
    m.say(str("warning: save_checkpoint() after ", m.micros.size(), " of the ", m.accumulation,
              " micro-batches of a step: this saves the step before, without their gradients; save at a step's end"));
  const bool async = args.async || m.config.checkpoint.writer.decoupled;
  const std::string key = str(dir, "\n", args.save_latest, async);
  if (!m.saver || m.saver_key != key) {
    if (m.saver) m.saver->wait();
    m.saver.reset();
    const auto& validation = m.config.checkpoint.tag_validation;
    m.saver = std::make_unique<checkpoints::Saver>(
        dir, &m.world,
        checkpoints::SaveOptions{.async = async,
                                 .keep = int(m.config.checkpoint.keep),
                                 .latest = args.save_latest,
                                 .tag_validation = validation == "fail"   ? checkpoints::TagValidation::fail
                                                   : validation == "warn" ? checkpoints::TagValidation::warn
                                                                          : checkpoints::TagValidation::ignore,
                                 .warn = [out = m.log](const std::string& text) { out("warning: " + text); }});
    m.saver_key = key;
  }
  m.saver->save(args.tag.empty() ? str("global_step", m.global_steps) : args.tag, m.contents(args));
}

bool EngineBase::save_16bit_model(const std::string& dir, const std::string& name) {
  Impl& m = *impl_;
  m.check_open("save_16bit_model");
  if (m.stage() == 3 && !m.config.zero_optimization.stage3_gather_16bit_weights_on_model_save) {
    m.say(
        "warning: save_16bit_model() saved nothing: at stage 3 no rank has the whole model; set "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save to true, or use save_checkpoint()");
    return false;
  }
  std::vector<checkpoints::Piece> own = m.pieces({});
  std::erase_if(own, [](const checkpoints::Piece& p) { return !p.name.starts_with("model."); });
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (auto& [key, tensor] : gather_pieces(own, {}, m.world).tensors)
    tensors.emplace_back(parameter_of(key), std::move(tensor));
  // Rank 0 writes the file and broadcasts its error text, so that every rank raises the Error if writing failed.
  const checkpoints::Ranks ranks{&m.world};
  const std::string error = ranks.broadcast(checkpoints::error_of([&] {
                                              if (!ranks.leads()) return;
                                              std::filesystem::create_directories(dir);
                                              data::save_safetensors(dir + "/" + name, tensors);
                                            }),
                                            "save_16bit_model");
  LOCKSTEP_CHECK(error.empty(), "[save_16bit_model] ", dir, "/", name, " was not saved: ", error,
                 "; check the path and the free space");
  return true;
}

void EngineBase::wait_for_checkpoint() {
  if (impl_->saver) impl_->saver->wait();
}

std::optional<Loaded> EngineBase::load_checkpoint(const std::string& dir, const LoadArgs& args) {
  impl_->check_open("load_checkpoint");
  LOCKSTEP_CHECK(!dir.empty(), "[load_checkpoint] expected a folder, got an empty name");
  wait_for_checkpoint();
  return impl_->load(dir, args);
}

std::optional<Loaded> EngineBase::Impl::load(const std::string& dir, const LoadArgs& args) {
  checkpoints::LoadOptions options{
      .tag = args.tag, .convert = true, .strict = args.load_module_strict, .warn = [this](const std::string& text) {
        say("warning: " + text);
      }};
  dist::ProcessGroup* const all = &world;
  const auto info = checkpoints::inspect(dir, all, options);
  if (!info) return {};
  options.tag.clear();
  const auto has = [&](const std::string& name) { return info->tensors.count(name) || info->aliases.count(name); };
  const bool has_optimizer = std::any_of(info->tensors.begin(), info->tensors.end(),
                                         [](const auto& t) { return t.first.starts_with("optimizer."); });
  const bool with_optimizer = args.load_optimizer_states && !args.load_module_only && has_optimizer;
  if (!with_optimizer) options.skip.push_back("optimizer.");
  for (const auto& [name, tensor] : info->tensors)
    if (!low_precision() && name.starts_with("optimizer.master.")) options.skip.push_back("model." + name.substr(17));

  forget();
  graphs.drop();  // the optimizer's tensors may be replaced
  const std::string master = "optimizer.master.", average = "optimizer.ema.";
  const std::set<std::string> frozen = frozen_names(model);
  std::vector<zero::StatePiece> pieces;
  if (has_state()) pieces = zero ? zero->state(true, with_optimizer) : exchange->state_to_load(*info, with_optimizer);
  std::vector<checkpoints::Piece> wanted;
  for (const zero::StatePiece& own : pieces) {
    checkpoints::Piece piece = as_piece(own);
    const bool is_model = own.name.starts_with("model.");
    if (!with_optimizer && !is_model) continue;
    // A checkpoint saved with exclude_frozen_parameters lacks frozen parameters: keep the model's value.
    if (frozen.count(own.name) && !has(own.name)) continue;
    // A checkpoint of an f32 model has no master weights: load them from the parameters themselves.
    if (own.name.starts_with(master) && !has(own.name)) piece.name = "model." + own.name.substr(master.size());
    // A checkpoint saved without weight averaging has no averages: load them from the parameters.
    if (own.name.starts_with(average) && !has(own.name)) {
      const std::string name = own.name.substr(average.size());
      piece.name = has(master + name) ? master + name : "model." + name;
    }
    if (is_model && own.tensor.dtype() == f32 && has(master + own.name.substr(6)))
      piece.name = master + own.name.substr(6);
    if (!has(piece.name) && !args.load_module_strict) continue;
    if (!part) wanted.push_back(std::move(piece));
    else
      for (checkpoints::Piece& one : part->full_pieces(piece)) wanted.push_back(std::move(one));
  }
  std::vector<std::pair<Tensor, Tensor>> buffers;  // (buffer, contiguous copy) for buffers that are not contiguous
  for (const auto& b : model.named_buffers()) {
    const Tensor here = b.tensor.contiguous();
    if (here.storage() != b.tensor.storage()) buffers.emplace_back(b.tensor, here);
    if (has("model." + b.name) || args.load_module_strict) wanted.push_back(checkpoints::full("model." + b.name, here));
  }
  std::vector<const Participating*> restored;
  for (const Participating& one : participants)
    if (with_optimizer && want_state_of(one, *info, wanted)) restored.push_back(&one);
  for (const Section& section : sections())
    if (!section.saved.empty() &&
        std::none_of(restored.begin(), restored.end(), [&](const auto* one) { return one->section == &section; }))
      options.skip.push_back(section.saved);
  const auto found = checkpoints::load(info->path, wanted, all, options);
  LOCKSTEP_CHECK(found, "[load_checkpoint] ", info->path,
                 " was removed while it was being loaded; load again, or raise checkpoint.keep where it was saved");
  for (auto& [to, from] : buffers) to.copy_(from);
  // If the optimizer's state is not loaded, master weights are copied from the model.
  for (const zero::StatePiece& own : pieces) {
    if (with_optimizer || !own.name.starts_with(master)) continue;
    for (const zero::StatePiece& weight : pieces) {
      if (weight.name == "model." + own.name.substr(master.size()))
        own.tensor.copy_(weight.tensor.view(own.tensor.shape()));
    }
  }
  for (const Participating* one : restored) one->participant->loaded();
  if (!args.load_module_only) load_numbers(*found, args, with_optimizer);
  if (zero) zero->loaded();
  else exchange->loaded();
  batches.reset();  // train_batch() makes a new one, which starts at the loader's new position
  return found;
}

bool EngineBase::Impl::want_state_of(const Participating& one, const checkpoints::Info& info,
                                     std::vector<checkpoints::Piece>& wanted) {
  const auto state = one.participant->state();
  if (one.section->saved.empty()) return true;
  const auto first = info.tensors.lower_bound(one.section->saved);
  if (first == info.tensors.end() || !first->first.starts_with(one.section->saved)) {
    say("warning: " + info.path + " " + one.participant->without_state());
    return false;
  }
  for (const auto& [name, tensor] : state) {
    const auto saved = info.tensors.find(name);
    LOCKSTEP_CHECK(saved == info.tensors.end() || saved->second.shape == tensor.shape(), "[load_checkpoint] ",
                   info.path, " has ", name, " ", saved->second.shape, ", and this engine ", tensor.shape(), ": ",
                   one.participant->other_shape(name, saved->second.shape));
    wanted.push_back(checkpoints::full(name, tensor));
  }
  return true;
}

/// Returns settings of the running program, so that they can be compared with those stored in a checkpoint: the seed,
/// options of parameter groups ("0.weight_decay") and base learning rates, but nothing that a schedule changes.
std::map<std::string, double> EngineBase::Impl::program_numbers() const {
  std::map<std::string, double> all{{"seed", double(random_state().seed)}};
  for (const auto& [key, value] : with_prefix(own_numbers(), "optimizer.group.")) {
    const std::string option = key.substr(key.find('.') + 1);
    const bool is_scheduled = option == "lr" || option == "initial_lr" || option == "momentum" || option == "beta1";
    if (!is_scheduled || schedules.empty()) all[key] = value;
  }
  if (!schedules.empty())
    for (const auto& [key, value] : schedules[0]->state())
      if (key.starts_with("base.")) all[key.substr(5) + ".lr"] = value;
  return all;
}

void EngineBase::Impl::load_numbers(const checkpoints::Loaded& found, const LoadArgs& args, bool with_optimizer) {
  const checkpoints::Numbers& numbers = found.numbers;
  const std::map<std::string, double> own = with_prefix(numbers, ""), before = program_numbers();
  if (args.load_optimizer_states && zero && has_state()) zero->load_numbers(own);
  if (with_optimizer && exchange) exchange->load_state(own);
  if (args.load_lr_scheduler_states) {
    for (size_t i = 0; i < schedules.size(); ++i) {
      const auto state = with_prefix(numbers, str("schedule", i, "."));
      LOCKSTEP_CHECK(!state.empty(), "[load_checkpoint] ", found.path,
                     " was saved without a schedule, and this engine has one; give load_lr_scheduler_states = false");
      schedules[i]->load_state(state);
    }
  }
  if (scaler) {
    const auto state = with_prefix(numbers, "scaler.");
    if (state.empty())
      say("warning: " + found.path + " was saved without loss scaling; it starts at " + str(scaler->scale()) +
          "; set fp16.initial_scale_power or fp16.loss_scale to change that");
    else scaler->load_state(state);
  }
  global_steps = integer(numbers, "engine.global_steps");
  micro_steps = global_steps * (config.managed_gradient_accumulation ? accumulation : 1);
  if (!config.managed_gradient_accumulation) micro_steps = integer(numbers, "engine.micro_steps");
  skipped_steps = integer(numbers, "engine.skipped_steps");
  global_samples = integer(numbers, "engine.global_samples");
  RandomState random{.seed = uint64_t(integer(numbers, "random.seed")),
                     .step = uint64_t(integer(numbers, "random.step"))};
  set_random_state(random);
  const auto printed = [](double x) { return std::abs(x) >= 1 && x == std::floor(x) ? str(int64_t(x)) : str(x); };
  std::map<std::string, std::string> others;  // differences of the first group that differs
  for (const auto& [key, value] : program_numbers())
    if (const auto asked = before.find(key); asked != before.end() && asked->second != value)
      others.emplace(
          key.substr(key.find('.') + 1),
          str(" is restored to ", printed(value), " from the checkpoint; the program set ", printed(asked->second)));
  for (const auto& [name, difference] : others) say("note: " + found.path + ": " + name + difference);
  if (loader && numbers.count("data.samples")) {
    loader->load_state({.seed = uint64_t(integer(numbers, "data.seed")),
                        .epoch = integer(numbers, "data.epoch"),
                        .samples = integer(numbers, "data.samples"),
                        .dataset_size = integer(numbers, "data.dataset_size")});
  }
  group->control().set_step(uint64_t(global_steps + 1));
}

EngineBase::FullState EngineBase::full_state() {
  Impl& m = *impl_;
  m.check_open("full_state");
  FullTensors full = gather_pieces(m.pieces({}), m.own_numbers(), m.world);
  FullState state;
  for (auto& [name, tensor] : full.tensors) {
    if (name.starts_with("model.")) state.model.emplace_back(parameter_of(name), tensor);
    else state.optimizer.tensors.emplace_back(state_name(name), tensor);
  }
  for (const auto& [key, value] : full.numbers) {
    const double number = checkpoints::number(full.numbers, key);
    if (number > 0 || !key.starts_with("optimizer.step.")) state.optimizer.numbers[state_name(key)] = number;
  }
  return state;
}

}  // namespace lockstep::engine
