#pragma once
// Recurrent layers: RNN, LSTM and GRU, their cells, and sequences of several lengths packed into one batch. Meaning,
// shapes and names of parameters are PyTorch's.
//
//   nn::LSTM lstm({.input = 64, .hidden = 128, .layers = 2});
//   auto [output, h, c] = lstm(x);  // x (T, B, 64): output (T, B, 128), h and c (2, B, 128)
#include "nn/module.h"

namespace lockstep::nn {

/// Sequences without their padding, longest first: row after row of each step, of as many sequences as still go on.
struct PackedSequence {
  Variable data;                     ///< (all steps of all sequences, ...)
  std::vector<int64_t> batch_sizes;  ///< sequences at each step
  std::vector<int64_t> order;        ///< which of the caller's sequences each one is; empty: they were sorted
  void each_variable(const auto& fn) { fn(data); }
};
struct PackOptions {
  bool batch_first = false, enforce_sorted = true;
};
/// input (T, B, ...), or (B, T, ...) with batch_first; lengths from 1 to T, one for each sequence. Error for lengths
/// that grow, unless enforce_sorted is off.
PackedSequence pack_padded_sequence(const Variable& input, const std::vector<int64_t>& lengths,
                                    const PackOptions& options = {});
struct PadOptions {
  bool batch_first = false;
  Scalar padding = 0;
  int64_t total_length = 0;  ///< 0: the longest sequence's
};
struct PaddedSequence {
  Variable output;               ///< (T, B, ...) or (B, T, ...), in the caller's order
  std::vector<int64_t> lengths;  ///< of it
  void each_variable(const auto& fn) { fn(output); }
};
PaddedSequence pad_packed_sequence(const PackedSequence& sequence, const PadOptions& options = {});

/// What RNN and GRU give.
struct RecurrentOutput {
  Variable output;  ///< (T, B, D P); (B, T, D P) with batch_first; (T, D P) for one sequence. D directions
  Variable h;       ///< (D layers, B, P); (D layers, P) for one sequence: the last states
  void each_variable(const auto& fn) { fn(output), fn(h); }
};
/// What LSTM gives; c (D layers, B, hidden).
struct LstmOutput {
  Variable output, h, c;
  void each_variable(const auto& fn) { fn(output), fn(h), fn(c); }
};
/// The same of packed sequences.
struct PackedRecurrentOutput {
  PackedSequence output;
  Variable h;
  void each_variable(const auto& fn) { fn(output.data), fn(h); }
};
struct PackedLstmOutput {
  PackedSequence output;
  Variable h, c;
  void each_variable(const auto& fn) { fn(output.data), fn(h), fn(c); }
};

struct RecurrentOptions {
  int64_t input, hidden, layers = 1;
  bool bias = true, batch_first = false;
  double dropout = 0;  ///< behind every layer but the last, while training
  bool bidirectional = false;
};

/// What RNN, LSTM and GRU share: weight_ih_l0 (G H, in), weight_hh_l0 (G H, P), bias_ih_l0, bias_hh_l0 (G H), of each
/// layer and direction ("_reverse"), all U(-1/sqrt(H), 1/sqrt(H)).
class Recurrence {
 public:
  int directions() const { return o.bidirectional ? 2 : 1; }

  RecurrentOptions o;
  RecurrentCell cell;
  int64_t projected;                      ///< size of h: hidden, or proj_size
  std::vector<RecurrentWeights> weights;  ///< of layer l and direction d: weights[l * directions() + d]

 protected:
  using Make = Variable (*)(const Shape& shape);
  Recurrence(const char* name, const RecurrentOptions& options, RecurrentCell cell, int64_t proj_size, Make make);
  void list(Fields& f);
  std::string text() const;
  LstmOutput run(const Variable& x, const Variable& h, const Variable& c, bool training);
  PackedLstmOutput run(const PackedSequence& x, const Variable& h, const Variable& c, bool training);

 private:
  LstmOutput over_layers(const Variable& rows, RecurrentArgs args, const Variable& h, const Variable& c, bool training);
  void check_states(const Variable& h, const Variable& c, int64_t batch, const Variable& x, bool batched) const;
  const char* name_;
};

template <class Derived> struct RecurrentLayer : Layer<Derived>, Recurrence {
  void fields(Fields& f) override { list(f); }
  std::string options() const override { return text(); }

 protected:
  RecurrentLayer(const char* name, const RecurrentOptions& o, RecurrentCell kind, int64_t proj_size = 0)
      : Recurrence(name, o, kind, proj_size, [](const Shape& shape) { return Module::parameter(shape); }) {}
};
/// One whose state is h alone. x (T, B, in), (B, T, in) with batch_first, or (T, in); h: first states, 0 when
/// undefined.
template <class Derived> struct PlainRecurrentLayer : RecurrentLayer<Derived> {
  RecurrentOutput forward(const Variable& x, const Variable& h = {}) {
    const LstmOutput out = this->run(x, h, {}, this->is_training());
    return {out.output, out.h};
  }
  PackedRecurrentOutput forward(const PackedSequence& x, const Variable& h = {}) {
    const PackedLstmOutput out = this->run(x, h, {}, this->is_training());
    return {out.output, out.h};
  }

 protected:
  using RecurrentLayer<Derived>::RecurrentLayer;
};

/// h = tanh(W x + b + V h + d), or relu (Elman, 1990).
struct RNN : PlainRecurrentLayer<RNN> {
  struct Options {
    int64_t input, hidden, layers = 1;
    bool relu = false;
    bool bias = true, batch_first = false;
    double dropout = 0;
    bool bidirectional = false;
  };
  explicit RNN(const Options& options);
};

/// Hochreiter and Schmidhuber, 1997; gates in the order i, f, g, o. proj_size: h is a projection of that many numbers,
/// by weight_hr_l0 (Sak et al., 2014).
struct LSTM : RecurrentLayer<LSTM> {
  struct Options {
    int64_t input, hidden, layers = 1;
    bool bias = true, batch_first = false;
    double dropout = 0;
    bool bidirectional = false;
    int64_t proj_size = 0;
  };
  explicit LSTM(const Options& options);
  /// As RNN's; h and c both, or neither.
  LstmOutput forward(const Variable& x, const Variable& h = {}, const Variable& c = {});
  PackedLstmOutput forward(const PackedSequence& x, const Variable& h = {}, const Variable& c = {});
};

/// Cho et al., 2014; gates in the order r, z, n.
struct GRU : PlainRecurrentLayer<GRU> {
  using Options = RecurrentOptions;
  explicit GRU(const Options& options);
};

/// One step of one layer: weight_ih (G H, in), weight_hh (G H, H), bias_ih, bias_hh (G H).
class RecurrentStep {
 public:
  int64_t input, hidden;
  RecurrentCell cell;
  RecurrentWeights weights;

 protected:
  using Make = Variable (*)(const Shape& shape);
  RecurrentStep(const char* name, int64_t input, int64_t hidden, bool bias, RecurrentCell cell, Make make);
  void list(Fields& f);
  std::string text() const { return str("in ", input, ", hidden ", hidden); }
  LstmOutput step(const Variable& x, const Variable& h, const Variable& c);

 private:
  const char* name_;
};

template <class Derived> struct RecurrentCellLayer : Layer<Derived>, RecurrentStep {
  /// x (B, in) or (in), h (B, H) or (H), or undefined for 0; gives the next h.
  Variable forward(const Variable& x, const Variable& h = {}) { return step(x, h, {}).h; }
  void fields(Fields& f) override { list(f); }
  std::string options() const override { return text(); }

 protected:
  RecurrentCellLayer(const char* name, const auto& o, RecurrentCell kind)
      : RecurrentStep(name, o.input, o.hidden, o.bias, kind,
                      [](const Shape& shape) { return Module::parameter(shape); }) {}
};
struct RNNCell : RecurrentCellLayer<RNNCell> {
  struct Options {
    int64_t input, hidden;
    bool bias = true, relu = false;
  };
  explicit RNNCell(const Options& o)
      : RecurrentCellLayer("RNNCell", o, o.relu ? RecurrentCell::relu : RecurrentCell::tanh) {}
};
struct GRUCell : RecurrentCellLayer<GRUCell> {
  struct Options {
    int64_t input, hidden;
    bool bias = true;
  };
  explicit GRUCell(const Options& o) : RecurrentCellLayer("GRUCell", o, RecurrentCell::gru) {}
};
struct LSTMCell : RecurrentCellLayer<LSTMCell> {
  using Options = GRUCell::Options;
  struct State {
    Variable h, c;
    void each_variable(const auto& fn) { fn(h), fn(c); }
  };
  explicit LSTMCell(const Options& o) : RecurrentCellLayer("LSTMCell", o, RecurrentCell::lstm) {}
  State forward(const Variable& x, const Variable& h = {}, const Variable& c = {}) {
    const LstmOutput next = step(x, h, c);
    return {next.h, next.c};
  }
};

}  // namespace lockstep::nn
