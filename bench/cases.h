#pragma once
// A list of benchmark cases on top of Google Benchmark, and a report that a script can read: one JSON object a line.
#include <functional>
#include <string>

namespace bench {

/// What a case costs, for the rates in its line; 0 leaves a rate out.
struct Cost {
  double flops = 0, bytes = 0;
};

/// Adds a case. `make` builds the inputs when the case is first run, and returns what is timed.
void add_case(const std::string& name, Cost cost, std::function<std::function<void()>()> make);

/// main() of a benchmark program: `peer` and `key` name the columns of its lines ("op" or "case"). Takes Google
/// Benchmark's own options, of which --benchmark_filter=REGEX and --benchmark_min_time=SECONDS matter most;
/// --benchmark_format=console prints its usual table instead.
int run_cases(int argc, char** argv, const char* bench, const char* key);

/// Keeps a result, and with it the work that made it.
template <class T> void keep(T&& value) { asm volatile("" : : "g"(&value) : "memory"); }

}  // namespace bench
