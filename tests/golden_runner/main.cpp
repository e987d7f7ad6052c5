// Runs every case of every golden file in the folders that the command line names, else in LOCKSTEP_GOLDEN_DIR, else in
// the folders of the repository that was built.
#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>

#include "tests/devices.h"
#include "tests/golden_runner/golden.h"

namespace golden {

namespace fs = std::filesystem;
using namespace lockstep;

Case::Case(const data::SafeTensors& file, const Json& json, std::string folder)
    : file_(file), json_(json), name_(json.at("name").as_string()), folder_(std::move(folder)) {
  for (const auto& entry : file.entries()) {
    if (entry.name.starts_with(name_ + "/"))
      tensors_[entry.name.substr(name_.size() + 1)] = file.tensor(entry).to(default_device());
  }
}

const Tensor& Case::tensor(const std::string& what) const {
  const auto found = tensors_.find(what);
  LOCKSTEP_CHECK(found != tensors_.end(), "the file has no tensor ", name_, "/", what);
  return found->second;
}

std::vector<std::string> Case::names(const std::string& prefix) const {
  std::vector<std::string> all;
  for (const auto& [what, tensor] : tensors_)
    if (what.starts_with(prefix)) all.push_back(what);
  return all;
}

Tensor Case::shared(const std::string& full_name) const { return file_.tensor(full_name).to(default_device()); }

const Json* Case::arg(const std::string& key) const {
  const Json* args = json_.find("args");
  const Json* value = args ? args->find(key) : nullptr;
  return value && !value->is_null() ? value : nullptr;
}
double Case::number(const std::string& key) const {
  LOCKSTEP_CHECK(arg(key), "the case has no option '", key, "'");
  return number(key, 0);
}
double Case::number(const std::string& key, double default_value) const {
  const Json* value = arg(key);
  if (!value) return default_value;
  if (value->is_string() && value->as_string() == "inf") return INFINITY;
  if (value->is_string() && value->as_string() == "-inf") return -INFINITY;
  return value->as_number(name_ + ": " + key);
}
int64_t Case::integer(const std::string& key) const { return int64_t(number(key)); }
int64_t Case::integer(const std::string& key, int64_t default_value) const {
  return int64_t(number(key, double(default_value)));
}
bool Case::flag(const std::string& key, bool default_value) const {
  const Json* value = arg(key);
  return value ? value->as_bool(name_ + ": " + key) : default_value;
}
std::string Case::text(const std::string& key, const std::string& default_value) const {
  const Json* value = arg(key);
  return value ? value->as_string(name_ + ": " + key) : default_value;
}
Dims Case::dims(const std::string& key) const {
  const Json* value = arg(key);
  return value ? to_dims(*value) : Dims{};
}

Reduction Case::reduction() const {
  const std::string name = text("reduction", "mean");
  LOCKSTEP_CHECK(name == "mean" || name == "sum" || name == "none", "unknown reduction '", name, "'");
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}

double Case::tolerance() const {
  double worst = 0;
  if (const Json* own = json_.find("tolerance")) worst = own->as_number();
  if (const Json* error = json_.find("torch_f32_err")) {
    if (error->is_number()) worst = std::max(worst, 20 * error->as_number());
    else
      for (const auto& [key, value] : error->as_object())
        if (value.is_number()) worst = std::max(worst, 20 * value.as_number());
  }
  return std::max(1e-5, worst);
}

void Report::compare(const std::string& what, const Tensor& ours, const Tensor& expected) {
  ++compared_;
  if (!ours.defined()) return wrong(what + " is undefined");
  if (!(ours.shape() == expected.shape()))
    return wrong(str(what, " has shape ", ours.shape(), ", not ", expected.shape()));
  if (!is_floating(expected.dtype())) {
    if (!equal(ours.to(cpu).to(i64), expected.to(cpu).to(i64))) wrong(what + " differs");
    return;
  }
  const auto a = ours.to_vector<double>(), b = expected.to_vector<double>();
  double worst = 0, max_abs = 0;
  const bool is_grad = what.starts_with("grad");
  const double reach = is_grad ? grad_reach_ : reach_.value_or(0), floor = is_grad && reach >= 1 ? 1 : 0.05;
  size_t at = 0;
  for (const double value : b)
    if (std::isfinite(value)) max_abs = std::max(max_abs, std::abs(value));
  const DType dtype = ours.dtype();
  const double largest = dtype == f16   ? 65504
                         : dtype == f64 ? INFINITY
                                        : 3.38e38,
               smallest = dtype == f16   ? 0x1p-24
                          : dtype == f64 ? 0x1p-1022
                                         : 0x1p-126;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (reach_ && std::abs(b[i]) > 0.99 * largest && std::abs(a[i]) >= 0.98 * largest &&
        std::signbit(a[i]) == std::signbit(b[i]))
      continue;
    const double off = reach_ ? std::max(0.0, std::abs(a[i] - b[i]) - 1.01 * smallest) /
                                    (std::abs(b[i]) + reach * std::max(max_abs, floor))
                              : std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i]));
    const double bad = std::isnan(off) ? INFINITY : off;
    if (bad > worst) worst = bad, at = i;
  }
  if (worst > tolerance_)
    wrong(str(what, " is off by ", worst, " (allowed ", tolerance_, "): element ", at, " of ", expected.shape(), " is ",
              a[at], ", not ", b[at]));
}

Dims to_dims(const Json& json) {
  if (json.is_number()) return Dims{json.as_int()};
  Dims dims;
  for (const Json& value : json.as_array()) dims.push_back(value.as_int());
  return dims;
}

Variable apply_views(Variable x, const Json& views) {
  for (const Json& view : views.as_array()) {
    const auto& list = view.as_array();
    const std::string& kind = list.at(0).as_string();
    Dims values;
    for (size_t i = 1; i < list.size(); ++i)
      for (int64_t v : to_dims(list[i])) values.push_back(v);
    if (kind == "slice") x = x.slice(values[0], values[1], values[2], values[3]);
    else if (kind == "transpose") x = x.transpose(values[0], values[1]);
    else if (kind == "permute") x = x.permute(values);
    else if (kind == "expand") x = x.expand(values);
    else fail("unknown view '" + kind + "'");
  }
  return x;
}

namespace {

/// The function that runs a case, chosen by the case's keys.
auto kind_of(const Json& c) -> void (*)(const Case&, Report&) {
  const Json* what = c.find("what");
  for (const auto& [key, run] : of_extensions().kinds)
    if (c.find(key)) return run;
  if (c.find("op")) return run_op;
  if (c.find("layer")) return run_layer;
  if (c.find("called")) return run_called;
  if (c.find("optimizer")) return run_optimizer;
  if (c.find("schedule")) return run_schedule;
  if (c.find("world")) return run_sampler;
  if (what && what->as_string().starts_with("clip_grad")) return run_clip;
  if (what && what->as_string().find("Scaler") != std::string::npos) return run_scaler;
  return nullptr;
}

/// Returns the numbers of passed and failed cases of one file.
std::pair<int, int> run_file(const fs::path& path) {
  std::optional<OnCpu> on_cpu;
  if (path.filename() == "fft.safetensors") on_cpu.emplace();  // complex tensors exist on the CPU only
  const auto file = data::SafeTensors::open(path.string());
  const auto found = file.metadata().find("cases");
  if (found == file.metadata().end()) return {0, 0};
  const Json cases = data::parse_json(found->second, path.string() + ": cases");
  int passed = 0, failed = 0;
  for (const Json& json : cases.as_array()) {
    if (json.at("name").as_string() == "common") continue;  // holds inputs that other cases share
    std::vector<std::string> problems;
    try {
      const Case c(file, json, path.parent_path().string());
      const auto run = kind_of(json);
      LOCKSTEP_CHECK(run, "unknown kind of case: ", json.dump());
      const Json* reach = json.find("reach");
      Report report(reach ? json.at("tolerance").as_number() : c.tolerance(),
                    reach ? std::optional(reach->as_number()) : std::nullopt,
                    reach ? json.at("grad_reach").as_number() : 0);
      if (json.find("refused")) {
        try {
          run(c, report);
          problems.push_back("expected an error, got none");
        } catch (const Error&) {}
        problems.empty() ? ++passed : ++failed;
        if (!problems.empty())
          std::cout << "FAIL " << path.filename().string() << " " << json.at("name").as_string() << ": " << problems[0]
                    << "\n";
        continue;
      }
      run(c, report);
      if (report.ok() && report.compared() == 0) report.wrong("nothing was compared");
      problems = report.problems();
    } catch (const std::exception& e) { problems.push_back(e.what()); }
    problems.empty() ? ++passed : ++failed;
    if (problems.empty()) continue;
    std::cout << "FAIL " << path.filename().string() << " " << json.at("name").as_string() << ":";
    for (size_t i = 0; i < problems.size() && i < 4; ++i) std::cout << (i ? "; " : " ") << problems[i];
    std::cout << "\n";
  }
  std::cout << path.filename().string() << ": " << passed << " passed, " << failed << " failed\n";
  return {passed, failed};
}

}  // namespace

}  // namespace golden

int main(int argc, char** argv) {
  if (!use_test_device()) return 2;
  try {
    const char* const asked = std::getenv("LOCKSTEP_GOLDEN_DIR");
    std::vector<std::string> folders(argv + 1, argv + argc);
    if (folders.empty()) folders = asked ? std::vector<std::string>{asked} : golden::folders();
    std::vector<std::filesystem::path> paths;
    for (const std::string& one : folders)
      for (const auto& entry : std::filesystem::directory_iterator(one))
        if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    int passed = 0, failed = 0;
    for (const auto& path : paths) {
      const auto [p, f] = golden::run_file(path);
      passed += p;
      failed += f;
    }
    if (passed + failed == 0) {
      std::cerr << "no golden cases in " << (folders.empty() ? "no folder" : folders[0])
                << "; set LOCKSTEP_GOLDEN_DIR to a folder of .safetensors files\n";
      return 2;
    }
    std::cout << passed << " passed, " << failed << " failed\n";
    return failed > 0;
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 2;
  }
}
