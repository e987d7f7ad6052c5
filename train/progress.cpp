// Draws the progress line. See progress.h.
#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/environment.h"

namespace lockstep::train {

namespace {

std::string clock_text(double seconds) {
  const int64_t s = int64_t(seconds + 0.5);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

Progress::Progress(int64_t first_step, int64_t last_step, std::string unit, double per_step, bool silent)
    // Under `lockstep run` stderr is a pipe. LOCKSTEP_TERMINAL tells rank 0 that the launcher's stderr is a terminal.
    : visible_(!silent && (isatty(STDERR_FILENO) != 0 || environment_flag("LOCKSTEP_TERMINAL"))),
      first_(first_step),
      last_(last_step),
      step_(first_step),
      unit_(std::move(unit)),
      per_step_(per_step) {}

Progress::~Progress() { clear(); }

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
std::string Progress::left() const {
  return clock_text(step_ > first_ ? seconds() / double(step_ - first_) * double(last_ - step_) : 0);
}
double Progress::rate() const { return double(step_ - first_) * per_step_ / std::max(seconds(), 1e-9); }

void Progress::show(int64_t step, const std::string& text) {
  step_ = step;
  const auto now = Clock::now();
  if (!visible_ || (now - printed_ < std::chrono::milliseconds(100) && step < last_)) return;
  printed_ = now;
  constexpr int kWidth = 24;
  const int filled = last_ > 0 ? int(kWidth * step / last_) : kWidth;
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "┄";
  fmt::print(stderr, "\r\033[K{} {}/{}  {}  {:.0f} {}/s  {} left", bar, step, last_, text, rate(), unit_, left());
  std::fflush(stderr);
}

void Progress::clear() {
  if (visible_) fmt::print(stderr, "\r\033[K");
}

}  // namespace lockstep::train
