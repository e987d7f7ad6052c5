#pragma once
// A step of an optimizer over many tensors of a device: the kernels of its rule are collected first, and made by one
// kernel for each (rule, dtype of the parameter, dtype of the gradient). What they read beside the tensors lies in the
// device's memory, and a small kernel writes it there, so that a recorded step (graph.h) can be replayed with another
// learning rate; whether it is made at all, and by what gradients are multiplied, may be found on the device.
//
//   batch.clear(); { StepBatch::Scope scope(batch, group, step); adam(...); adam(...); }      nothing runs yet
//   batch.set(control);                                     numbers: the one thing that is not recorded
//   batch.add_squares(gradients, sums); batch.take_norm(tensors, sums);        norm, clip, found and skip, if wanted
//   batch.launch();
//
// Not for the CPU, where a kernel costs no launch.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// What all kernels of a step read where it lies.
struct StepControl {
  int64_t skipped = 0;  ///< steps that the host has counted, and the device has not made
  double scale = 1;     ///< gradients are multiplied by it,
  double clip = 1;      ///< then by this
  double norm = 0;      ///< of the scaled gradients
  double max_norm = 0;  ///< more is clipped; 0: nothing is
  int32_t found = 0;    ///< a gradient is NaN or infinite
  int32_t skip = 0;     ///< this step is not made
  int32_t skips = 0;    ///< it is not when something was found
  int32_t rounds = 0;   ///< what was multiplied is rounded to the gradient's dtype, as if it lay in memory
};

/// One tensor of a step, flat, as kernels read it.
struct StepPiece {
  void *p, *low, *state[3];  // low may be null
  const void* grad;
  int64_t n, first_chunk;
  int32_t slot;  // of numbers
  DType low_type;
  bool is_aligned;
  uint8_t unused[2] = {};  // no padding: bytes are compared
};

/// Options of a rule for tensors that were updated equally often, counted with this step.
struct StepSlot {
  int64_t step = 0;
  alignas(8) std::byte args[112] = {};
};

/// A tensor whose squares are added up, a chunk at a time.
struct SquarePiece {
  const void* x;
  int64_t n, first_chunk;
  int64_t at;  // of the sum of its first chunk
  DType dtype;
  bool is_aligned;
  uint8_t unused[6] = {};
};

/// Where the sums of a tensor are that has a norm of its own (optim::norm_of_squares).
struct NormPiece {
  int64_t first, count;
  int64_t is_wide;  // f64
};

class StepBatch {
 public:
  static constexpr int64_t chunk = 4096;  ///< elements: a block's work, and what squares are summed over in one go
  explicit StepBatch(Device device);
  StepBatch(const StepBatch&) = delete;

  /// While it lives, this thread's adam(), sgd(), rmsprop(), adagrad() and lion() are noted in the batch. All of a key
  /// and step share their numbers. numbers_only: tensors do not matter.
  class Scope {
   public:
    Scope(StepBatch& batch, int key, int64_t step, bool numbers_only = false);
    ~Scope();
    Scope(const Scope&) = delete;
  };
  /// The one that this thread collects in, or nullptr. For kernels, as the next two.
  static StepBatch* collecting();
  using Launch = void (*)(const std::byte* table, int pieces, int64_t chunks, const std::byte* numbers);
  /// True when that was all.
  template <class Args> bool add_numbers(const Args& args);
  void add(Launch launch, StepPiece piece, Tensor gradient);

  /// Forgets what was collected.
  void clear();
  /// Writes the control and the numbers of what was collected. keeps_skipped: but for the count of skipped steps.
  void set(const StepControl& control, bool keeps_skipped = false);
  /// Error when what was collected cannot be recorded: there must be one set of numbers for each key, and room for
  /// them, which set() has made before.
  void check_recordable(const char* op) const;

  /// sums[at + i] = the sum of squares of chunk i of x, scaled as the control says; sets control.found.
  struct Squares {
    Tensor x;  // contiguous, floating
    int64_t at = 0;
  };
  void add_squares(const std::vector<Squares>& all, const Tensor& sums);
  /// Those of each tensor in one, added in their order; `totals` may have more places.
  void add_up(const std::vector<NormPiece>& all, const Tensor& sums, const Tensor& totals);
  /// From those sums: control.norm, clip and skip.
  void take_norm(const std::vector<NormPiece>& all, const Tensor& sums);
  /// control.found, where it lies: one element of i32. For ranks that have to agree on it.
  Tensor found() const;
  /// Updates what was collected, unless control.skip is set.
  void launch();
  /// As it is when the device is there: waits.
  StepControl read() const;

 private:
  /// Bytes in the device's memory, which are written again only when they change.
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
  int64_t bytes() const;  // of the numbers
  const std::byte* hold(Table& table, const void* bytes, size_t size);
  void write(const Tensor& to, int64_t at, const void* bytes, size_t size) const;

  const Device device_;
  std::vector<Job> jobs_;
  std::vector<Slot> slots_;
  std::vector<Tensor> gradients_;  // alive until they are read
  Tensor numbers_;                 // the control, and the slots behind it
  Table squares_, tensors_, norms_;
  int key_ = 0, slot_ = 0;
  int64_t step_ = 0;
  bool numbers_only_ = false, recorded_ = false;
};

template <class Args> bool StepBatch::add_numbers(const Args& args) {
  static_assert(sizeof(Args) <= sizeof StepSlot::args && std::is_trivially_copyable_v<Args>);
  const auto is_same = [&](const Slot& slot) {  // a key is of one rule
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
