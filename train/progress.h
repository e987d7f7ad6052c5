#pragma once
// A progress line on stderr. Nothing is shown unless stderr is a terminal.
#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep::train {

/// Shows the progress of a run, and measures its time.
class Progress {
 public:
  /// Speed is counted in `unit` ("tokens", "samples") per second. A step has `per_step` units. `silent`: measure only.
  Progress(int64_t first_step, int64_t last_step, std::string unit, double per_step, bool silent = false);
  ~Progress();
  /// Shows the step (counted from 1) and `text` ("loss 2.31"), at most ten times per second.
  void show(int64_t step, const std::string& text);
  /// Erases the line, so that something else can be printed.
  void clear();
  double seconds() const;  ///< seconds since the start
  /// Speed since the start, in units (tokens, samples) per second.
  double rate() const;
  std::string left() const;  ///< the time that the remaining steps will take, "1:02:10"

 private:
  using Clock = std::chrono::steady_clock;
  bool visible_;
  int64_t first_, last_, step_;
  std::string unit_;
  double per_step_;
  Clock::time_point start_ = Clock::now(), printed_{};
};

}  // namespace lockstep::train
