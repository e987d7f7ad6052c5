#pragma once
// Shared by the programs in this folder: options, random numbers, drawn digits, the training loop. With --golden,
// initial parameters and random numbers come from formulas. The same programs in PyTorch (tests/interop/ports.py) use
// the same formulas, so the losses can be compared.
#include <lockstep.h>

#include <functional>
#include <string>
#include <vector>

namespace ports {

/// Options of a program; each program has its own defaults.
struct Options {
  int64_t steps = 200, batch = 32;
  double lr = 1e-3;
};

/// One run of an example program: its options, data, random numbers and reported losses.
class Run : public Options {
 public:
  /// Makes a run with these options.
  explicit Run(const Options& options) : Options(options) {}
  bool golden = false;
  std::string model;  ///< one of the names passed to run(), chosen by --model

  /// With --golden, sets the initial parameters of a model by formulas. Without --golden, leaves them as they are.
  void start(lockstep::nn::Module& model) const;
  lockstep::Tensor uniform(const lockstep::Shape& shape);  ///< random numbers in [0, 1)
  /// Random numbers from N(0, 1).
  lockstep::Tensor normal(const lockstep::Shape& shape);
  /// Pictures of digits (count, 1, 28, 28) in [0, 1], and their labels i64 (count).
  struct Digits {
    lockstep::Tensor images, labels;
  };
  /// Returns the next `count` digits; with --golden, the pictures are random numbers.
  Digits digits(int64_t count);

  /// Begins a step; false after the last one.
  bool next() { return step_++ < steps; }
  int64_t step() const { return step_; }  ///< counted from 1
  /// Records the loss of a step. Prints about ten of a run's losses, or all with --golden.
  void report(double loss);
  void report(const lockstep::Variable& loss) { report(loss.item()); }

 private:
  friend int run(int, char**, const std::string&, const Options&, const std::function<void(Run&)>&,
                 const std::vector<std::string>&);
  int64_t step_ = 0, sampled_ = 0, digits_used_ = 0;
  double sum_ = 0;
  int64_t counted_ = 0;  ///< steps whose losses are in sum_: the last tenth of the run
};

/// Parses the options, runs the program, and prints the mean loss of the last tenth of its steps; returns the exit
/// code. models: values of --model; the first is the default.
int run(int argc, char** argv, const std::string& about, const Options& defaults,
        const std::function<void(Run&)>& program, const std::vector<std::string>& models = {});

}  // namespace ports
