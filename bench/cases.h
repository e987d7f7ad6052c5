#pragma once
// Benchmark cases on top of Google Benchmark, reported as one JSON object per line.
#include <functional>
#include <string>

namespace bench {

/// Floating-point operations and bytes of one run of a case. The report divides both by the time, to give rates. A
/// number of 0 gives no rate.
struct Cost {
  double flops = 0, bytes = 0;
};

/// Registers a case. `make` is called when the case first runs: it builds the inputs and returns the function to time.
void add_case(const std::string& name, Cost cost, std::function<std::function<void()>()> make);

/// main() of a benchmark program. In the JSON lines, `bench` is the program's name, and `key` ("op" or "case") is the
/// name of the field that holds the case's name. Takes Google Benchmark's options, most usefully
/// --benchmark_filter=REGEX and --benchmark_min_time=SECONDS; with --benchmark_format=console it prints a table instead
/// of JSON.
int run_cases(int argc, char** argv, const char* bench, const char* key);

/// Stops the compiler from removing the computation of `value`.
template <class T> void keep(T&& value) { asm volatile("" : : "g"(&value) : "memory"); }

}  // namespace bench
