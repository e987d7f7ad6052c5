// The run's folder: config.json, metrics.jsonl, checkpoints/, and parameter hashes for lockstep verify. See trainer.h.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/printable.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "data/files.h"
#include "engine/exchange.h"
#include "engine/section.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/bf16_products.h"
#include "trace/trace.h"
#include "train/bits.h"
#include "train/cli.h"
#include "train/trainer_impl.h"

namespace lockstep::train {

namespace {

/// Removes a file's lines after step `last`, because the resumed run writes them again. Also removes an incomplete last
/// line, which a killed process may have left.
void cut_back(const std::string& path, int64_t last) {
  if (!std::filesystem::exists(path)) return;
  std::istringstream in(data::read_file(path, INT64_MAX));
  std::string kept, line;
  try {
    while (std::getline(in, line) && data::parse_json(line, path).at("step", path).as_int(path) <= last)
      kept += line + "\n";
  } catch (const Error&) {}  // NOLINT: the last line was cut short
  data::write_atomically(path, kept);
}

/// Removes the checkpoints of an earlier run, and what names the last and the best of them.
void remove_run(const std::string& folder) {
  std::vector<std::filesystem::path> old{folder + "/latest", folder + "/best", folder + "/checkpoints"};
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("checkpoint-")) old.push_back(entry.path());
  for (const auto& path : old) std::filesystem::remove_all(path);
}

}  // namespace

/// Locks the folder: one job at a time may train in it. (The checkpoint folder has its own lock, which detects stale
/// locks.)
void Trainer::Impl::lock_folder() {
  if (!writes() || lock || !std::filesystem::exists(job.options().out)) return;
  // With o.state, the run's folder is also the checkpoint folder, whose lock lies in it. So lock the subfolder .run.
  const std::string folder = o.state ? path(".run") : job.options().out;
  std::filesystem::create_directories(folder);
  lock.emplace(files, folder, false, [](const std::string&) {});
}

/// Opens the run's folder. Checks everything before anything is created or changed.
void Trainer::Impl::open() {
  namespace fs = std::filesystem;
  const Team& team = job.team();
  const std::string resume_name = called("--resume"), out_name = called("--out");
  LOCKSTEP_CHECK(has_folder() || !job.options().resume, "[Trainer] ", resume_name, ": expected a folder (", out_name,
                 "), got none");
  Json config = o.facts;
  config["model"] = kind;
  config["parameters"] = parameters;
  if (has_folder()) {
    lock_folder();
    std::vector<double> found{double(team.leads() && fs::exists(checkpoint_folder() + "/latest"))};
    team.sum(found, "is there a checkpoint");
    const bool resume_ = job.options().resume, there = found[0] > 0 || (resume_ && !o.resume_from.empty());
    LOCKSTEP_CHECK(resume_ || o.overwrite || !there, job.options().out, " already holds a run; continue it with ",
                   resume_name, ", or choose another ", out_name);
    if (resume_ && fs::exists(path(config_name()))) {
      const Json saved = data::read_json(path(config_name()));
      const auto expect_same = [&](const std::string& key, bool same, const Json* before, const Json& now) {
        LOCKSTEP_CHECK(same, path(config_name()), ": ", resume_name, " needs the same run, but ", key, " was ",
                       before ? before->dump() : "not set", " and is now ", now.dump(),
                       "; give it as before, or another ", out_name);
      };
      for (const auto& [key, value] : config.as_object()) {
        const Json* before = saved.find(key);
        expect_same(key, before && *before == value, before, value);
      }
      const Json settings = saved.find("engine") ? saved.at("engine") : Json(Json::Object{}),
                 asked_settings = to_json(engine->config());
      for (const engine::Section& section : engine::sections()) {
        if (!section.fixed) continue;
        const Json *const before = settings.find(section.name), *const now = asked_settings.find(section.name);
        const bool was = before && before->is_object(), is = now && now->is_object();
        expect_same(section.name, was == is && (!was || *before == *now), before, now ? *now : Json());
      }
      const Json* micro = saved.find("train_batch_size");
      if (there && micro && team.leads() && *micro != Json(*engine->config().train_batch_size))
        std::cerr << "note: train_batch_size was " << micro->dump() << " and is now "
                  << *engine->config().train_batch_size
                  << ": results will not be bit-identical to an uninterrupted run, unless you give it as before\n";
      const Json *const precision = saved.find("precision"), asked(job.options().precision);
      if (there && precision && team.leads() && *precision != asked)
        std::cerr << "note: the precision was " << precision->dump() << " and is now " << asked.dump()
                  << ": results will differ from an uninterrupted run; --precision chooses\n";
      const Json *const products = saved.find("bf16_products"), now(std::string(name_of(bf16_products())));
      if (there && products && team.leads() && *products != now)
        std::cerr << "note: products of bf16 were " << products->dump() << " and are now " << now.dump()
                  << " (LOCKSTEP_BF16_PRODUCTS): results will differ in their bits\n";
    }
    if (resume_ && there) resume();
    else if (resume_ && team.leads())
      std::cerr << "note: " << job.options().out << " holds no checkpoint, so " << resume_name << " begins at step 0\n";
    team.wait();  // until all ranks have read the old files, before rank 0 replaces them
  }
  for (const auto& [key, value] : o.notes.as_object()) config[key] = value;
  // lockstep report takes its title from here, and advises --trace to programs with our command line (identity_of()).
  if (!config.find("program")) config["program"] = program_invocation_short_name;
  if (job.options().parallel.identity.starts_with("build=")) config["trace_option"] = "--trace";
  config["steps"] = steps;
  config["precision"] = job.options().precision;
  config["bf16_products"] = std::string(name_of(bf16_products()));
  config["seed"] = int64_t(job.options().seed);
  config["batch"] = engine->train_micro_batch_size_per_gpu();
  config["train_batch_size"] = *engine->config().train_batch_size;
  config["micro_batches"] = micro_batches();
  config["plan"] = to_string(job.plan());
  const std::string* const unkept = data::not_utf8(config);
  LOCKSTEP_CHECK(!unkept, "expected paths and options in UTF-8, because the run's config.json stores them, got ",
                 *unkept, "; rename it");
  trace::note("settings", config.dump());
  if (!engine->in_parts()) {  // for the formulas of lockstep report
    Json plan_note(Json::Object{});
    plan_note["parameters"] = parameters;
    plan_note["parameter_bytes"] = parameters * size_of(engine->module().parameters().at(0).dtype());
    plan_note["ranks"] = engine->group().size();
    plan_note["micro_batches"] = engine->gradient_accumulation_steps();
    plan_note["zero"] = engine->config().zero_optimization.stage;
    plan_note["offload"] = std::string(name_of(engine->config().zero_optimization.offload_optimizer.device));
    plan_note["optimizer"] = std::string(engine->optimizer().name());
    trace::note("parallel", plan_note.dump());
  }
  if (const std::string& file = job.options().parallel.trace_bits; !file.empty() && team.leads()) {
    bits = OutputFile(file, true, "--trace-bits ");
  }
  call(&Callback::on_train_begin);
  if (writes()) {
    prepare_output(out_name, job.options().out);
    lock_folder();
    if (o.overwrite && !job.options().resume) remove_run(job.options().out);
    config["engine"] = engine::to_json(engine->config());
    data::write_atomically(path(config_name()), config.dump(2) + "\n");
    if (first > 0) cut_back(path("metrics.jsonl"), first);
    metrics = OutputFile(path("metrics.jsonl"), first == 0);
  }
}

void Trainer::Impl::resume() {
  const std::string from = o.resume_from.empty() ? checkpoint_folder() : o.resume_from;
  const auto loaded = engine->load_checkpoint(from);
  LOCKSTEP_CHECK(loaded, from, ": ", called("--resume"), " found no checkpoint; leave it out to begin a new run");
  first = step = engine->global_steps();
  if (first >= steps && job.team().leads())
    std::cerr << "note: " << from << ": the run is done, this is step " << first << " of " << steps << "\n";
  const auto number = [&](const char* key) {
    const Json* at = loaded->client_state.find(key);
    return at && at->is_number() ? std::optional(at->as_number()) : std::nullopt;
  };
  if (const auto scale = number("scaler.scale"))
    scaler.load_state({{"scale", *scale}, {"growth_tracker", number("scaler.growth_tracker").value_or(0)}});
  best = number("best");
  smoothed_loss = number("smoothed_loss").value_or(NAN);
  if (const Json* const states = loaded->client_state.find("callbacks"))
    for (const Callback& callback : o.callbacks)
      if (const Json* own = states->find(callback.name); own && callback.load_state) callback.load_state(*own);
  const Json* const saved = loaded->client_state.find("trainer_state");
  if (!state || !saved) return;
  state->load(*saved);
  std::vector<double> gone{
      double(job.team().leads() && !state->best_folder().empty() && !std::filesystem::exists(state->best_folder()))};
  job.team().sum(gone, "is the best model there");
  if (gone[0] == 0) return;
  if (job.team().leads())
    std::cerr << "note: " << printable(state->best_folder())
              << ", the best model so far, was removed: from now on the best of later models counts\n";
  best.reset();
  state->forget_best();
}

void Trainer::Impl::save() {
  if (!has_folder()) return;
  const trace::Scope scope("save checkpoint", trace::Category::checkpoint);
  Json state(Json::Object{});
  if (job.autocast() == f16)
    state["scaler.scale"] = scaler.scale_value(), state["scaler.growth_tracker"] = double(scaler.growth_tracker());
  if (best) state["best"] = *best;
  if (!std::isnan(smoothed_loss)) state["smoothed_loss"] = smoothed_loss;
  for (const Callback& callback : o.callbacks)
    if (callback.state) state["callbacks"][callback.name] = callback.state();
  if (this->state) state["trainer_state"] = this->state->json(true);
  engine->save_checkpoint(checkpoint_folder(), {.tag = o.state ? str("checkpoint-", step) : "", .client_state = state});
  engine->wait_for_checkpoint();
  if (this->state && writes())
    data::write_atomically(path(checkpoints::read_latest(checkpoint_folder()) + "/trainer_state.json"),
                           this->state->json().dump(2) + "\n");
  call(&Callback::on_save);
}

void Trainer::Impl::write_state() {
  if (state && writes()) data::write_atomically(path("trainer_state.json"), state->json().dump(2) + "\n");
}

void Trainer::Impl::write_bits(double loss) {
  if (job.options().parallel.trace_bits.empty()) return;
  std::vector<int64_t> hashes(names.size());
  const auto experts = moe::expert_names(*model);  // expert-parallel ranks hold different experts under one name
  const auto put = [&](const std::string& name, const Tensor& tensor) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at != names.end() && experts.count(name) == 0) hashes[size_t(at - names.begin())] = int64_t(hash_of(tensor));
  };
  const engine::Exchange* const exchange = engine->exchange();
  if (job.plan().tp > 1) {
    for (const auto& [name, tensor] : engine->full_state().model) put(name, tensor);
  } else {
    std::optional<zero::Zero::Gathered> full;
    if (!exchange && !engine->in_parts()) full.emplace(engine->zero(), engine->module().parameters());
    for (const auto& p : engine->module().named_parameters()) put(p.name, p.variable.tensor());
  }
  // True: all ranks have equal parameters.
  const bool together = !exchange || exchange->is_synchronized();
  write_trace_line(bits, step, loss, engine->product_dtype(), names,
                   together ? merge_hashes(job.team(), names, hashes, step) : hashes);
}

namespace {

checkpoints::Info checkpoint_of(const std::string& folder) {
  const std::string below = folder + "/checkpoints";
  const auto found = checkpoints::inspect(std::filesystem::exists(below) ? below : folder);
  LOCKSTEP_CHECK(found, folder, ": expected the folder of a run, or of its checkpoints; it holds none; check the path");
  return *found;
}

}  // namespace

nn::FileTotals held_by(const std::string& folder) {
  nn::FileTotals all;
  const checkpoints::Info found = checkpoint_of(folder);
  for (const auto& [name, tensor] : found.tensors)
    ++all.tensors, all.bytes += tensor.numel() * int64_t(size_of(tensor.dtype));
  return all;
}

void load_model(nn::Module& model, const std::string& folder, bool average) {
  LOCKSTEP_CHECK(!folder.empty(), "[load_model] expected a folder, got an empty name");
  const std::string of_average = "optimizer.ema.", of_master = "optimizer.master.";
  const checkpoints::Info checkpoint = checkpoint_of(folder), *const found = &checkpoint;
  bool has_average = false;
  std::vector<checkpoints::Piece> wanted;
  std::vector<std::string> skip{"optimizer."};
  for (const auto& [name, tensor] : model.state()) {
    // False for buffers and frozen parameters, which have no average.
    const bool averaged = average && found->tensors.count(of_average + name);
    has_average |= averaged;
    // True: load the f32 master weights of a parameter that was trained in 16 bits.
    const bool wide = !averaged && size_of(tensor.dtype()) >= 4 && found->tensors.count(of_master + name);
    if (wide) skip.push_back("model." + name);
    wanted.push_back(checkpoints::full((averaged ? of_average : wide ? of_master : "model.") + name, tensor));
  }
  LOCKSTEP_CHECK(has_average || !average, folder,
                 ": --ema: this run has no averaged parameters; train with --set ema.decay=0.999, or leave --ema out");
  if (average) skip.push_back("model.");
  checkpoints::load(found->path, wanted, nullptr, {.convert = true, .skip = skip});
}

}  // namespace lockstep::train
