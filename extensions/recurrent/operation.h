#pragma once
// One recurrent layer over a batch of sequences, with gradients.
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Kind of a recurrent cell; tanh and relu are plain recurrent networks.
enum class RecurrentCell : uint8_t { tanh, relu, lstm, gru };
/// Number of gates: the blocks of H rows in the cell's weights.
inline int64_t gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

/// One pass of a recurrent layer over time, in one direction. The rows of a packed input lie step after step: step t
/// has batch[t] rows, those of the first batch[t] sequences. batch never grows from step to step.
struct RecurrentArgs {
  RecurrentCell cell = RecurrentCell::lstm;
  bool reverse = false;        ///< true: from the last step to the first
  std::vector<int64_t> batch;  ///< rows of each step
};

/// Weights of one layer and direction in PyTorch's shapes. The biases are optional, and so is `project` (LSTMs only).
struct RecurrentWeights {
  Variable input, hidden, input_bias, hidden_bias, project;
};
/// The results of recurrent(). H is the hidden size. P is the size of h: H, or the projection's size if there is one.
struct RecurrentResult {
  Variable out, h, c;  ///< out: h of every step (rows, P); h: last states (B, P); c: last cells of an LSTM (B, H)
};
/// One recurrent layer over a batch of sequences. x (rows, in) holds the rows of step 0, then those of step 1, etc.
/// (see RecurrentArgs). h and c are the initial states. On the CPU the layer is one node of the graph, with one matrix
/// product for the inputs of all steps; on other devices it is composed of other operations.
RecurrentResult recurrent(const RecurrentArgs& args, const Variable& x, const Variable& h, const Variable& c,
                          const RecurrentWeights& weights);

}  // namespace lockstep
