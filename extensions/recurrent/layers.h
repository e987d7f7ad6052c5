#pragma once
// Recurrent layers: RNN, LSTM and GRU, their single-step cells, and packing of sequences of different lengths.
// Formulas, shapes and parameter names are PyTorch's.
//
//   nn::LSTM lstm({.input = 64, .hidden = 128, .layers = 2});
//   auto [output, h, c] = lstm(x);  // x (T, B, 64): output (T, B, 128), h and c (2, B, 128)
#include "extensions/recurrent/operation.h"
#include "nn/module.h"

namespace lockstep::nn {

/// Sequences of different lengths without padding, longest first. Rows are ordered by step; each step has one row for
/// every sequence that has not ended.
struct PackedSequence {
  Variable data;                     ///< (total number of steps, ...)
  std::vector<int64_t> batch_sizes;  ///< number of running sequences at each step
  std::vector<int64_t> order;  ///< order[i]: the caller's index of packed sequence i; empty: in the caller's order
  /// Calls fn for each variable; see nn/outputs.h.
  void each_variable(const auto& fn) { fn(data); }
};
/// Options of pack_padded_sequence().
struct PackOptions {
  bool batch_first = false, enforce_sorted = true;
};
/// Packs input (T, B, ...), or (B, T, ...) with batch_first, given each sequence's length from 1 to T. With
/// enforce_sorted, Error if the lengths are not in descending order; without it, sorts the sequences by length.
PackedSequence pack_padded_sequence(const Variable& input, const std::vector<int64_t>& lengths,
                                    const PackOptions& options = {});
/// Options of pad_packed_sequence().
struct PadOptions {
  bool batch_first = false;
  Scalar padding = 0;
  int64_t total_length = 0;  ///< T of the output; 0: the longest sequence
};
/// Result of pad_packed_sequence().
struct PaddedSequence {
  Variable output;               ///< (T, B, ...) or (B, T, ...), in the caller's order
  std::vector<int64_t> lengths;  ///< lengths of the sequences, in the caller's order
  /// Calls fn for each variable; see nn/outputs.h.
  void each_variable(const auto& fn) { fn(output); }
};
/// Inverse of pack_padded_sequence().
PaddedSequence pad_packed_sequence(const PackedSequence& sequence, const PadOptions& options = {});

/// Result of RNN and GRU. Output is Variable, or PackedSequence for a packed input.
template <class Output> struct HiddenOutput {
  Output output;  ///< (T, B, D P); (B, T, D P) with batch_first; (T, D P) for one sequence. D: number of directions
  Variable h;     ///< last states: (D layers, B, P); (D layers, P) for one sequence. P: size of h
  /// Calls fn for each variable; see nn/outputs.h.
  void each_variable(const auto& fn) { nn::each_variable(output, fn), fn(h); }
};
using RecurrentOutput = HiddenOutput<Variable>;              ///< result of RNN and GRU
using PackedRecurrentOutput = HiddenOutput<PackedSequence>;  ///< their result on a packed sequence
/// Result of LSTM. output and h: as in HiddenOutput; c: last cell states (directions * layers, B, hidden).
template <class Output> struct CellOutput {
  Output output;
  Variable h, c;
  /// Calls fn for each variable; see nn/outputs.h.
  void each_variable(const auto& fn) { nn::each_variable(output, fn), fn(h), fn(c); }
};
using LstmOutput = CellOutput<Variable>;              ///< result of LSTM
using PackedLstmOutput = CellOutput<PackedSequence>;  ///< its result on a packed sequence

/// Options of GRU. RNN and LSTM have the same options and one more each.
struct RecurrentOptions {
  int64_t input, hidden, layers = 1;
  bool bias = true, batch_first = false;
  double dropout = 0;  ///< dropout probability of the output of every layer but the last, in training
  bool bidirectional = false;
};

/// The stacked recurrence that RNN, LSTM and GRU share. Parameters of each layer and direction (suffix "_reverse"):
/// weight_ih_l0 (G H, in), weight_hh_l0 (G H, P), bias_ih_l0 and bias_hh_l0 (G H), all U(-1/sqrt(H), 1/sqrt(H)), where
/// G is the number of gates, H the hidden size and P the size of h.
class Recurrence {
 public:
  /// 2 if bidirectional, else 1.
  int directions() const { return o.bidirectional ? 2 : 1; }

  RecurrentOptions o;
  RecurrentCell cell;
  int64_t projected;                      ///< P: hidden, or proj_size
  std::vector<RecurrentWeights> weights;  ///< layer l, direction d: weights[l * directions() + d]

 protected:
  Recurrence(const char* name, const RecurrentOptions& options, RecurrentCell cell, int64_t proj_size = 0);
  void list(Fields& f);
  std::string text() const;
  LstmOutput run(const Variable& x, const Variable& h, const Variable& c, bool training);
  PackedLstmOutput run(const PackedSequence& x, const Variable& h, const Variable& c, bool training);

 private:
  LstmOutput over_layers(const Variable& rows, RecurrentArgs args, const Variable& h, const Variable& c, bool training);
  void check_states(const Variable& h, const Variable& c, int64_t batch, const Variable& x, bool batched) const;
  const char* name_;
};

/// A layer that is a Recurrence. Registers the Recurrence's parameters as its fields.
template <class Derived> struct RecurrentLayer : Layer<Derived>, Recurrence {
  void fields(Fields& f) override { list(f); }
  std::string options() const override { return text(); }

 protected:
  using Recurrence::Recurrence;
};
/// Base of RNN and GRU, whose only state is h. x (T, B, in), (B, T, in) with batch_first, or (T, in); h: initial
/// states; an undefined h stands for zeros.
template <class Derived> struct PlainRecurrentLayer : RecurrentLayer<Derived> {
  /// Runs all steps; h as in RecurrentOutput.
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

/// Elman network (1990): next h = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh), or with relu in place of tanh.
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

/// Long short-term memory (Hochreiter and Schmidhuber, 1997), with PyTorch's order of gates, i, f, g, o. If proj_size
/// is not 0, weight_hr_l0 projects h to that size (Sak et al., 2014).
struct LSTM : RecurrentLayer<LSTM> {
  struct Options {
    int64_t input, hidden, layers = 1;
    bool bias = true, batch_first = false;
    double dropout = 0;
    bool bidirectional = false;
    int64_t proj_size = 0;
  };
  explicit LSTM(const Options& options);
  /// x and h as in RNN. Error if only one of h and c is given.
  LstmOutput forward(const Variable& x, const Variable& h = {}, const Variable& c = {}) {
    return run(x, h, c, is_training());
  }
  PackedLstmOutput forward(const PackedSequence& x, const Variable& h = {}, const Variable& c = {}) {
    return run(x, h, c, is_training());
  }
};

/// Gated recurrent unit (Cho et al., 2014), with the gates in PyTorch's order r, z, n.
struct GRU : PlainRecurrentLayer<GRU> {
  using Options = RecurrentOptions;
  explicit GRU(const Options& o) : PlainRecurrentLayer("GRU", o, RecurrentCell::gru) {}
};

/// One step of one layer, the base of the cells. Parameters: weight_ih (G H, in), weight_hh (G H, H), bias_ih and
/// bias_hh (G H), with G gates and hidden size H.
class RecurrentStep {
 public:
  int64_t input, hidden;
  RecurrentCell cell;
  RecurrentWeights weights;

 protected:
  RecurrentStep(const char* name, int64_t input, int64_t hidden, bool bias, RecurrentCell cell);
  void list(Fields& f);
  std::string text() const { return str("in ", input, ", hidden ", hidden); }
  LstmOutput step(const Variable& x, const Variable& h, const Variable& c);

 private:
  const char* name_;
};

/// A layer that is a RecurrentStep. Registers the RecurrentStep's parameters as its fields.
template <class Derived> struct RecurrentCellLayer : Layer<Derived>, RecurrentStep {
  /// x (B, in) or (in); h (B, H) or (H); an undefined h stands for zeros. Returns the next h.
  Variable forward(const Variable& x, const Variable& h = {}) { return step(x, h, {}).h; }
  void fields(Fields& f) override { list(f); }
  std::string options() const override { return text(); }

 protected:
  RecurrentCellLayer(const char* name, const auto& o, RecurrentCell kind)
      : RecurrentStep(name, o.input, o.hidden, o.bias, kind) {}
};
/// One step of an RNN.
struct RNNCell : RecurrentCellLayer<RNNCell> {
  struct Options {
    int64_t input, hidden;
    bool bias = true, relu = false;
  };
  explicit RNNCell(const Options& o)
      : RecurrentCellLayer("RNNCell", o, o.relu ? RecurrentCell::relu : RecurrentCell::tanh) {}
};
/// One step of a GRU.
struct GRUCell : RecurrentCellLayer<GRUCell> {
  struct Options {
    int64_t input, hidden;
    bool bias = true;
  };
  explicit GRUCell(const Options& o) : RecurrentCellLayer("GRUCell", o, RecurrentCell::gru) {}
};
/// One step of an LSTM.
struct LSTMCell : RecurrentCellLayer<LSTMCell> {
  using Options = GRUCell::Options;
  /// The next state.
  struct State {
    Variable h, c;
    /// Calls fn for each variable; see nn/outputs.h.
    void each_variable(const auto& fn) { fn(h), fn(c); }
  };
  explicit LSTMCell(const Options& o) : RecurrentCellLayer("LSTMCell", o, RecurrentCell::lstm) {}
  /// Returns the next state. x and h: as in the other cells. Give both h and c, or neither.
  State forward(const Variable& x, const Variable& h = {}, const Variable& c = {}) {
    const LstmOutput next = step(x, h, c);
    return {next.h, next.c};
  }
};

}  // namespace lockstep::nn
