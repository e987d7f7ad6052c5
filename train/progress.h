#pragma once
// A line that shows how far a run is: quiet unless stderr is a terminal.
#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep::train {

class Progress {
 public:
  /// `unit` is what is counted per second ("tokens", "samples"), `per_step` how many a step handles.
  /// `silent`: only keeps time.
  Progress(int64_t first_step, int64_t last_step, std::string unit, double per_step, bool silent = false);
  ~Progress();
  /// Shows step (counted from 1) with `text` ("loss 2.31"); at most ten times a second.
  void show(int64_t step, const std::string& text);
  /// Removes the line, so that something else can be printed.
  void clear();
  double seconds() const;
  /// Units per second since the start.
  double rate() const;

 private:
  using Clock = std::chrono::steady_clock;
  bool visible_;
  int64_t first_, last_, step_;
  std::string unit_;
  double per_step_;
  Clock::time_point start_ = Clock::now(), shown_{};
};

}  // namespace lockstep::train
