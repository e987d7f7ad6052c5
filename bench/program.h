#pragma once
// Benchmark programs share these: the command line, durations, medians.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "base/clock.h"

namespace bench {

/// A command line whose --help prints the defaults of options.
class Program : public CLI::App {
 public:
  explicit Program(const std::string& about) : CLI::App(about) { option_defaults()->always_capture_default(); }
  /// Reads the command line, calls run(), and prints Errors. Returns the result of main().
  template <class Run> int run(int argc, char** argv, const Run& run) {
    try {
      parse(argc, argv);
      run();
      return 0;
    } catch (const CLI::ParseError& error) { return exit(error); } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << "\n";
      return 1;
    }
  }
};

/// Duration of fn() in seconds.
template <class Fn> double seconds_of(const Fn& fn) {
  const double start = lockstep::steady_seconds();
  fn();
  return lockstep::steady_seconds() - start;
}

/// CPU time of this process so far, over all threads, in seconds.
inline double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

/// The median; 0 without values.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace bench
