#pragma once
// A training step as a list of actions, which a plan makes before anything runs. The list is executed, checked,
// simulated, printed and drawn.
//
//   dN      draw micro-batch N         FN      forward               BN>     backward that also starts reductions
//   +N      add its gradients          BN      backward              IN, WN  the two halves of a backward
//   aN>     send an activation         <aN     receive it            gN>     send a gradient         <gN  receive it
//
//   one rank, 2 micro-batches     d0 F0 B0 d1 F1 B1> tail
//   ZeRO 3, rank 1 of 2           d1 F1 B1> d3 F3 B3> tail
//   1F1B, last rank of 2          <a0 d0 F0 B0 g0> +0 <a1 d1 F1 B1 g1> +1 ... tail
//   evaluation, first of 2        d0 F0 a0> d1 F1 a1> losses
//
//   tail: reduce losses check norm update gather scale rates report
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::parallel {

/// What one entry of a list does. The actions from draw to add have a micro-batch and a chunk of the rank's layers.
enum class Do : uint8_t {
  draw,  ///< draw the data of a micro-batch
  forward,
  backward,
  backward_input,   ///< the half of a backward that the previous stage waits for
  backward_weight,  ///< the other half
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  add,     ///< add the micro-batch's gradients to the sum; send those of tied parameters to an earlier stage
  reduce,  ///< sums over micro-batches become sums over replicas
  losses,  ///< send the losses of all micro-batches to all ranks
  check,   ///< is a gradient NaN or infinite on any rank?
  norm,    ///< norm of the gradients over shards, slices and stages; gives the clipping factor
  update,  ///< scale, clip, and the optimizer's rule
  gather,  ///< each rank sends the parameters that it has updated to all ranks
  scale,   ///< adapt the loss scale: lower it if a gradient was NaN or infinite
  rates,   ///< set the learning rates of the next step
  report   ///< counters, printed lines, monitors
};
std::string_view name_of(Do what);  ///< "forward", "sending the activation", ...
/// True for forwards and backwards.
inline bool is_compute(Do what) { return what >= Do::forward && what <= Do::backward_weight; }
/// True for actions of the host, which a device graph (tensor/graph.h) cannot contain. The others may be recorded once,
/// and replayed.
inline bool is_on_host(Do what) { return what == Do::losses || what >= Do::scale; }
/// True for actions that are left out when a gradient is NaN or infinite.
inline bool needs_finite(Do what) { return what >= Do::norm && what <= Do::gather; }
/// True for the sending end of a transfer.
inline bool is_send(Do what) { return what == Do::send_activation || what == Do::send_gradient; }

/// One entry of a rank's list.
struct StepAction {
  Do what = Do::forward;
  int32_t micro_batch = -1;  ///< -1: an action of the whole step
  int32_t chunk = 0;         ///< chunk of this rank; for a transfer, the chunk that produces or consumes the tensor
  bool reduces = false;      ///< true: this backward starts the reductions; false: it only adds gradients to the sum
  friend bool operator==(const StepAction&, const StepAction&) = default;
};
std::string to_string(const StepAction& action);  ///< "forward of micro-batch 3, chunk 1"
/// A list in short, "d0 F0 B0 ...", as at the top of this file. With several chunks, a letter names the chunk: "F0b".
std::string to_string(const std::vector<StepAction>& list, int chunks = 1);

/// The lists of all ranks that share a model. Every rank has all lists, so it knows what the others send.
using Lists = std::vector<std::vector<StepAction>>;

/// Where the micro-batches of a step run. Micro-batches are numbered over the whole step, in all replicas.
struct StepReplicas {
  int count = 1, micro_batches = 1;  ///< replicas, and micro-batches of each
  /// True: replica r runs r, r + count, ... (ZeRO 2 and 3). False: consecutive ones.
  bool interleaved = false;
  /// The number of a replica's micro-batch i.
  int64_t number(int64_t replica, int64_t i) const {
    return interleaved ? i * count + replica : replica * micro_batches + i;
  }
};
/// The step of a replica that holds the whole model. If micro-batches are interleaved, each backward reduces; otherwise
/// only the last one does.
std::vector<StepAction> step_of(const StepReplicas& replicas, int replica);
/// Appends the actions after the last micro-batch, the `tail` at the top of this file.
void add_tail(std::vector<StepAction>& list, bool trains);

/// Which actions run() performs. eager: all. record: only the device's, while a graph records them. replay: only the
/// host's, after that graph has run.
enum class Mode : uint8_t { eager, record, replay };
/// The loop over a step's actions, in training and in evaluation. `act` performs one action.
void run(const std::vector<StepAction>& list, const std::function<void(const StepAction&)>& act,
         Mode mode = Mode::eager);

}  // namespace lockstep::parallel
