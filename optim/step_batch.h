#pragma once
// An optimizer step over many tensors of a device, in few launches: the updates are collected first, then run by one
// kernel for each (rule, dtype of the parameter, dtype of the gradient). The updates' numbers (learning rate, step
// count) lie in device memory, and a small kernel writes them there, so that a recorded step (graph.h) can be replayed
// with another learning rate. The device itself may decide whether the step is made (no NaN found) and how gradients
// are scaled.
//
//   batch.clear();
//   { StepBatch::Scope scope(batch, group, step); adam(...); adam(...); }  // collects; nothing runs yet
//   batch.set(control);                                                    // the numbers: the only part not recorded
//   batch.add_squares(gradients, sums); batch.take_norm(tensors, sums);    // if wanted: sets norm, clip, found, skip
//   batch.launch();
//
// Not for the CPU, where kernels have no launch cost.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// Values of a step that all its kernels read from device memory.
struct StepControl {
  int64_t skipped = 0;  ///< steps that the host has counted but the device has skipped
  double scale = 1;     ///< first factor of the gradients, such as the inverse loss scale
  double clip = 1;      ///< second factor of the gradients: gradient clipping
  double norm = 0;      ///< norm of the scaled gradients
  double max_norm = 0;  ///< gradients with a larger norm are clipped; 0: never
  int32_t found = 0;    ///< 1 if a gradient is NaN or infinite
  int32_t skip = 0;     ///< 1 if this step is not made
  int32_t skips = 0;    ///< 1 if a step with `found` is to be skipped
  int32_t rounds = 0;   ///< 1 if scaled gradients are rounded to their dtype, as if they were stored
};

/// One flat tensor of a step, as kernels read it.
struct StepPiece {
  /// Parameter, its 16-bit copy (or null), optimizer states.
  void *p, *low, *state[3];
  const void* grad;
  int64_t n, first_chunk;
  int32_t slot;  // index of its StepSlot
  DType low_type;
  bool is_aligned;
  uint8_t unused[2] = {};  // explicit padding, because the bytes are compared
};

/// Options of an update rule. Tensors of a parameter group share a slot if their options and their numbers of updates
/// are equal. step: the number of updates, this one included.
struct StepSlot {
  int64_t step = 0;
  alignas(8) std::byte args[112] = {};  ///< the rule's options
};

/// A tensor whose squares are summed, one chunk at a time.
struct SquarePiece {
  const void* x;
  int64_t n, first_chunk;
  int64_t at;  // index of the sum of its first chunk
  DType dtype;
  bool is_aligned;
  uint8_t unused[6] = {};
};

/// The range of one tensor's chunk sums (sums of the squares of 4096 elements), from which its norm is computed.
struct NormPiece {
  int64_t first, count;
  int64_t is_wide;  // 1: the tensor is f64; 0: f32
};

/// The updates of one optimizer step, collected by a Scope and run by launch().
class StepBatch {
 public:
  /// Elements per chunk. A thread block works on one chunk, and each chunk has its own sum of squares.
  static constexpr int64_t chunk = 4096;
  /// A batch for one device; Error for the CPU.
  explicit StepBatch(Device device);
  StepBatch(const StepBatch&) = delete;

  /// During a Scope, this thread's calls of kernels that use optim/cuda/step_update.h, such as adam() and sgd(), are
  /// added to the batch instead of run. Calls with equal `key` (the caller's number for a parameter group), step and
  /// options share a StepSlot. numbers_only: true collects only the options, and no tensors.
  class Scope {
   public:
    Scope(StepBatch& batch, int key, int64_t step, bool numbers_only = false);
    ~Scope();
    Scope(const Scope&) = delete;
  };
  // The following are for kernels.
  /// The batch that this thread collects in, or nullptr.
  static StepBatch* collecting();
  /// Runs one rule over a table of StepPieces in device memory.
  using Launch = void (*)(const std::byte* table, int pieces, int64_t chunks, const std::byte* numbers);
  /// Selects the StepSlot for these options. Returns true if the Scope has numbers_only: do not call add() then.
  template <class Args> bool add_numbers(const Args& args);
  /// Adds a tensor; keeps its gradient alive until launch().
  void add(Launch launch, StepPiece piece, Tensor gradient);

  /// Drops all collected updates.
  void clear();
  /// Writes control and options to the device. keeps_skipped: true does not overwrite the device's count of skipped
  /// steps.
  void set(const StepControl& control, bool keeps_skipped = false);
  /// Error if the collected step cannot be recorded. All updates that were collected under one key (see Scope) must
  /// share one StepSlot, and an earlier set() must have allocated enough memory for the slots.
  void check_recordable(const char* op) const;

  /// A tensor for add_squares(): the sum of squares of its chunk i goes to sums[at + i].
  struct Squares {
    Tensor x;  // contiguous, floating
    int64_t at = 0;
  };
  /// Sums the squares of each chunk, after scaling by control.scale; sets control.found if an element is not finite.
  void add_squares(const std::vector<Squares>& all, const Tensor& sums);
  /// totals[i] = the sum of the chunk sums in the range all[i], added in order; `totals` may be longer.
  void add_up(const std::vector<NormPiece>& all, const Tensor& sums, const Tensor& totals);
  /// Computes control.norm, clip and skip from the chunk sums.
  void take_norm(const std::vector<NormPiece>& all, const Tensor& sums);
  /// control.found as a tensor in device memory (i32, one element), for ranks that must agree on it.
  Tensor found() const;
  /// Runs the collected updates, unless control.skip is set on the device.
  void launch();
  /// Waits for the device, then returns the control as the launched updates have left it.
  StepControl read() const;

 private:
  /// Bytes in device memory that are rewritten only when they change.
  struct Table {
    Tensor device;
    std::vector<std::byte> held;
  };
  struct Job {
    Launch launch;
    std::vector<StepPiece> pieces;
    int64_t chunks = 0;
    Table table;
  };
  struct Slot {
    int key;
    StepSlot numbers;
  };
  int64_t bytes() const;  // size of numbers_ in use
  const std::byte* hold(Table& table, const void* bytes, size_t size);
  void write(const Tensor& to, int64_t at, const void* bytes, size_t size) const;

  const Device device_;
  std::vector<Job> jobs_;
  std::vector<Slot> slots_;
  std::vector<Tensor> gradients_;  // keeps the gradients alive until they are read
  Tensor numbers_;                 // the control, then the slots
  Table squares_, tensors_, norms_;
  int key_ = 0, slot_ = 0;
  int64_t step_ = 0;
  bool numbers_only_ = false, recorded_ = false;
};

// Finds the slot with these options, or makes one.
template <class Args> bool StepBatch::add_numbers(const Args& args) {
  static_assert(sizeof(Args) <= sizeof StepSlot::args && std::is_trivially_copyable_v<Args>);
  const auto is_same = [&](const Slot& slot) {  // updates under one key are by one rule
    Args other;
    std::memcpy(&other, slot.numbers.args, sizeof other);
    return slot.key == key_ && slot.numbers.step == step_ && other == args;
  };
  slot_ = int(std::find_if(slots_.begin(), slots_.end(), is_same) - slots_.begin());
  if (slot_ == int(slots_.size())) {
    slots_.push_back({key_, {.step = step_}});
    std::memcpy(slots_.back().numbers.args, &args, sizeof args);
  }
  return numbers_only_;
}

}  // namespace lockstep
