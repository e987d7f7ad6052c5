#include "apps/common/run.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "data/files.h"
#include "data/safetensors.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace apps {

using namespace lockstep;

namespace {

volatile std::sig_atomic_t interrupts = 0;

void on_signal(int signal) {
  interrupts = interrupts + 1;
  if (interrupts > 1) std::_Exit(128 + signal);
}

constexpr const char* kFormat = "lockstep-checkpoint-1";

std::string checked_checkpoint(const data::SafeTensors& file, const std::string& path) {
  const auto format = file.metadata().find("format"), numbers = file.metadata().find("numbers");
  LOCKSTEP_CHECK(format != file.metadata().end() && format->second == kFormat && numbers != file.metadata().end(), path, ": expected a checkpoint (format ", kFormat, ") that one of these programs wrote");
  return numbers->second;
}

nn::State model_state(const data::SafeTensors& file) {
  nn::State state;
  for (const std::string& name : file.names()) if (name.starts_with("model.")) state.emplace_back(name.substr(6), file.tensor(name));
  return state;
}

// 64-bit counters do not fit a double: they are saved in halves.
void put_u64(std::map<std::string, double>& numbers, const std::string& key, uint64_t value) {
  numbers[key + ".high"] = double(value >> 32);
  numbers[key + ".low"] = double(value & 0xffffffffu);
}
uint64_t get_u64(const std::map<std::string, double>& numbers, const std::string& key) {
  return uint64_t(numbers.at(key + ".high")) << 32 | uint64_t(numbers.at(key + ".low"));
}

}  // namespace

// A handler that runs on the stack of a thread in oneDNN's sgemm (2.6.3) damages the heap, as if its kernels kept data below
// the stack pointer: one Ctrl-C in twenty ended a run with corrupted memory. On a stack of their own handlers do no harm.
Interrupt::Interrupt() : stack_(1 << 16) {
  const stack_t own{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  LOCKSTEP_CHECK(sigaltstack(&own, &before_) == 0, "expected a stack for signals, got: ", std::strerror(errno));
  interrupts = 0;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}
Interrupt::~Interrupt() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  sigaltstack(&before_, nullptr);
}
bool Interrupt::requested() { return interrupts > 0; }

Run::Run(const CommonOptions& options, const Team& team, const Json& config, const std::vector<std::string>& model_options) : team_(team), folder_(options.out) {
  trace::note("settings", config.dump());
  if (folder_.empty()) return;
  std::error_code error;
  if (team.leads()) std::filesystem::create_directories(folder_, error);
  LOCKSTEP_CHECK(!error, folder_, ": cannot make this folder for --out: ", error.message());
  if (options.resume) {
    const Json saved = data::read_json(path("config.json"));
    for (const std::string& key : model_options) {
      const Json* before = saved.find(key);
      LOCKSTEP_CHECK(before && *before == config.at(key), path("config.json"), ": --resume needs the same model, but ", key, " was ", before ? before->dump() : "not set", " and is now ", config.at(key).dump());
    }
    team.wait();  // all have read it before rank 0 replaces it
    if (!team.leads()) return;
    for (const char* key : {"batch", "micro_batches"}) {
      const Json* before = saved.find(key);
      if (before && !(*before == config.at(key))) std::cerr << "note: " << key << " was " << before->dump() << " and is now " << config.at(key).dump() << ": another list of micro-batches, so the run ends with other bits than it would have\n";
    }
  } else if (!team.leads()) {
    return;
  } else {
    LOCKSTEP_CHECK(!std::filesystem::exists(path("checkpoint.safetensors")), folder_, " already holds a run; go on with it by --resume, or choose another --out");
  }
  data::write_atomically(path("config.json"), config.dump(2) + "\n");
  metrics_.open(path("metrics.jsonl"), options.resume ? std::ios::app : std::ios::trunc);
  LOCKSTEP_CHECK(metrics_, path("metrics.jsonl"), ": cannot be written");
}

void Run::metric(const Json& line) {
  if (!metrics_.is_open()) return;
  metrics_ << line.dump() << std::endl;
  LOCKSTEP_CHECK(metrics_, path("metrics.jsonl"), ": writing failed; is the disk full?");
}

void Run::save(nn::Module& model, const optim::Optimizer& optimizer, const std::map<std::string, double>& extra) const {
  if (folder_.empty()) return;
  const trace::Scope scope("save checkpoint", trace::Category::checkpoint);
  if (!team_.leads()) return team_.wait();
  save(model.state(), optimizer.state(), extra);
}

void Run::save(const nn::State& model, const optim::OptimizerState& state, const std::map<std::string, double>& extra) const {
  if (folder_.empty()) return;
  if (!team_.leads()) return team_.wait();
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [name, tensor] : model) tensors.emplace_back("model." + name, tensor.to(cpu));
  for (const auto& [name, tensor] : state.tensors) tensors.emplace_back("optimizer." + name, tensor.to(cpu));
  std::map<std::string, double> numbers = extra;
  for (const auto& [name, value] : state.numbers) numbers["optimizer." + name] = value;
  const RandomState random = random_state();
  put_u64(numbers, "random.seed", random.seed);
  put_u64(numbers, "random.step", random.step);
  put_u64(numbers, "random.micro_batch", random.micro_batch);
  put_u64(numbers, "random.call", random.call);
  Json json(Json::Object{});
  for (const auto& [name, value] : numbers) json[name] = value;
  data::save_safetensors(path("checkpoint.safetensors"), tensors, {{"format", kFormat}, {"numbers", json.dump()}});
  team_.wait();
}

std::map<std::string, double> Run::load(nn::Module& model, optim::Optimizer& optimizer) const {
  nn::State tensors;
  optim::OptimizerState state;
  const auto numbers = load(tensors, state);
  model.load_state(tensors);
  optimizer.load_state(state);
  data::check_mapped_files();
  return numbers;
}

std::map<std::string, double> Run::load(nn::State& model, optim::OptimizerState& state) const {
  const std::string file_path = path("checkpoint.safetensors");
  const auto file = data::SafeTensors::open(file_path);
  const Json json = data::parse_json(checked_checkpoint(file, file_path), file_path + ": numbers");
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : json.as_object()) {
    if (name.starts_with("optimizer.")) state.numbers[name.substr(10)] = value.as_number(name);
    else numbers[name] = value.as_number(name);
  }
  for (const std::string& name : file.names()) if (name.starts_with("optimizer.")) state.tensors.emplace_back(name.substr(10), file.tensor(name));
  for (const char* key : {"random.seed", "random.step", "random.micro_batch", "random.call"}) {
    LOCKSTEP_CHECK(numbers.count(std::string(key) + ".high") && numbers.count(std::string(key) + ".low"), file_path, ": the checkpoint has no '", key, "'");
  }
  model = model_state(file);
  set_random_state({.seed = get_u64(numbers, "random.seed"), .step = get_u64(numbers, "random.step"), .micro_batch = get_u64(numbers, "random.micro_batch"), .call = get_u64(numbers, "random.call")});
  return numbers;
}

void load_model(nn::Module& model, const std::string& checkpoint) {
  const auto file = data::SafeTensors::open(checkpoint);
  checked_checkpoint(file, checkpoint);
  model.load_state(model_state(file));
  data::check_mapped_files();
}

void print_result(const Json& result, bool json) {
  if (json) {
    std::cout << result.dump() << std::endl;
    return;
  }
  std::string line;
  for (const auto& [key, value] : result.as_object()) {
    if (!line.empty()) line += ", ";
    line += key + " " + (value.is_int() ? std::to_string(value.as_int()) : value.is_number() ? fmt::format("{:.4g}", value.as_number()) : value.is_string() ? value.as_string() : value.dump());
  }
  std::cout << line << std::endl;
}

}  // namespace apps
