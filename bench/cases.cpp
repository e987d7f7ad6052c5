// Registration and reports of benchmark cases: medians over repetitions, as JSON lines. See cases.h.
#include "bench/cases.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <vector>

#include "base/at_end.h"
#include "base/check.h"
#include "base/threads.h"
#include "data/json.h"
#include "tensor/memory.h"

namespace bench {
namespace {

std::map<std::string, Cost> costs;

/// The current case. Its inputs are kept over its repetitions and released when the next case starts.
struct Prepared {
  std::string name;
  std::function<void()> timed;
};
Prepared prepared;

double rounded(double x, int digits) { return std::round(x * std::pow(10, digits)) / std::pow(10, digits); }

/// Reports a case as one line: median and minimum over its repetitions, in microseconds.
class JsonLines : public benchmark::BenchmarkReporter {
 public:
  JsonLines(std::string bench, std::string key) : bench_(std::move(bench)), key_(std::move(key)) {}
  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<double> us;
    int64_t calls = 0;
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      us.push_back(run.real_accumulated_time / double(run.iterations) * 1e6);
      calls += run.iterations;
    }
    if (us.empty()) return;
    std::sort(us.begin(), us.end());
    const std::string name = runs[0].run_name.function_name;
    const double median = us[us.size() / 2];
    lockstep::data::Json line(lockstep::data::Json::Object{{"bench", bench_},
                                                           {"peer", "lockstep"},
                                                           {"threads", lockstep::get_threads()},
                                                           {key_, name},
                                                           {"us", rounded(median, 3)},
                                                           {"min_us", rounded(us[0], 3)},
                                                           {"n", calls}});
    const Cost cost = costs[name];
    if (cost.flops > 0) line["gflops"] = rounded(cost.flops / median / 1e3, 1);
    if (cost.bytes > 0) line["gb_s"] = rounded(cost.bytes / median / 1e3, 2);
    std::cout << line.dump() << std::endl;
  }

 private:
  std::string bench_, key_;
};

}  // namespace

void add_case(const std::string& name, Cost cost, std::function<std::function<void()>()> make) {
  costs[name] = cost;
  const auto run = [name, make = std::move(make)](benchmark::State& state) {
    if (prepared.name != name) {
      // Release the old inputs and cached memory first, so that cases do not depend on each other.
      prepared = {};
      lockstep::release_cached_memory();
      prepared = {name, make()};
      prepared.timed();
    }
    for (auto _ : state) prepared.timed();
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

int run_cases(int argc, char** argv, const char* bench, const char* key) {
  const bool console =
      std::any_of(argv + 1, argv + argc, [](const std::string& arg) { return arg.starts_with("--benchmark_format"); });
  std::string repetitions = "--benchmark_repetitions=11", min_time = "--benchmark_min_time=0.05";
  // Defaults; the user's options come later and override them.
  std::vector<char*> args{argv[0], repetitions.data(), min_time.data()};
  args.insert(args.end(), argv + 1, argv + argc);
  int count = int(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;
  const lockstep::AtEnd releases([] { prepared = {}; });
  try {
    JsonLines lines(bench, key);
    const size_t ran = console ? benchmark::RunSpecifiedBenchmarks() : benchmark::RunSpecifiedBenchmarks(&lines);
    benchmark::Shutdown();
    return ran > 0 ? 0 : 1;
  } catch (const lockstep::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace bench
