#pragma once
// What these programs share: options, random numbers, digits to look at, and the loop's head. With --golden a program
// starts from formulas, and draws its numbers from formulas: its twin in PyTorch (tests/interop/ports.py) does so, too,
// and then both have the same losses.
#include <lockstep.h>

#include <functional>
#include <string>
#include <vector>

namespace ports {

struct Options {
  int64_t steps = 200, batch = 32;
  double lr = 1e-3;
};

class Run : public Options {
 public:
  explicit Run(const Options& options) : Options(options) {}
  bool golden = false;
  std::string model;  ///< of those that run() was given

  /// The parameters of a model to begin with: its own; of formulas with --golden.
  void start(lockstep::nn::Module& model) const;
  lockstep::Tensor uniform(const lockstep::Shape& shape);  ///< in [0, 1)
  lockstep::Tensor normal(const lockstep::Shape& shape);
  /// The next (count, 1, 28, 28) drawn digits in [0, 1], and which ones they are: i64 (count).
  struct Digits {
    lockstep::Tensor images, labels;
  };
  Digits digits(int64_t count);

  /// Begins a step; false after the last one.
  bool next() { return step_++ < steps; }
  int64_t step() const { return step_; }  ///< from 1
  /// Prints what a step came to: now and then, with --golden always.
  void report(double loss);
  void report(const lockstep::Variable& loss) { report(loss.item()); }

 private:
  friend int run(int, char**, const std::string&, const Options&, const std::function<void(Run&)>&,
                 const std::vector<std::string>&);
  int64_t step_ = 0, drawn_ = 0, seen_ = 0;
  double sum_ = 0;
  int64_t counted_ = 0;  ///< of the last tenth of all steps
};

/// Reads the options, runs the program, and prints the mean loss of the last tenth of its steps. An exit code. models:
/// what --model may be, the first one if it is not given.
int run(int argc, char** argv, const std::string& about, const Options& defaults,
        const std::function<void(Run&)>& program, const std::vector<std::string>& models = {});

}  // namespace ports
