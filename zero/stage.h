#pragma once
// What all stages share; stage 0 as it stands: every rank keeps everything, and gradients are all-reduced. Each stage
// adds one thing:
//
//   Stage   gradients of parallel/reducer.h, step            stage.cpp, step.cpp
//   Stage1  optimizer state in parts                         stage1.cpp
//   Stage2  and gradients                                    stage2.cpp
//   Stage3  and parameters                                   stage3.cpp
//
// Not for users: they see zero.h.
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/reducer.h"
#include "zero/shards.h"

namespace lockstep::zero {

class ShardedOptimizer;
class ShardStore;

class Stage : public Shards, public parallel::Reducer::Policy {
 public:
  Stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options,
        dist::ProcessGroup& group);
  ~Stage() override;
  /// The second half of the constructor, which asks the stage.
  void build();

  StepReport step(const StepOptions& o);
  void forget() { reducer_->forget(); }  // all gradients
  virtual void enter_no_sync() { reducer_->enter_no_sync(); }
  void leave_no_sync() { reducer_->leave_no_sync(); }
  void pause(bool wanted);

  virtual void pin(size_t /*unit*/) {}
  virtual void unpin(size_t /*unit*/) {}
  virtual bool is_pinned(size_t /*unit*/) const { return false; }
  /// Everybody takes a rank's values of these parameters, which are pinned.
  void take_from(int rank, const std::vector<size_t>& parameters);
  virtual void register_external(nn::Module&, const Variable&) {}

  // state.cpp
  std::vector<StatePiece> state(bool to_load, bool make);
  std::map<std::string, double> numbers() const;
  void load_numbers(const std::map<std::string, double>& numbers);
  void loaded();

  // What the optimizer over shards asks.
  virtual const ShardStore* store() const { return nullptr; }  // stage 3: of parameters
  virtual Tensor weight(Unit& unit, const Piece& piece);       // the parameter's elements that a piece owns, flat
  Tensor gradient(Unit& unit, int64_t at, int64_t n, double scale) const;  // of elements of the shard, in f32
  virtual void publish(Unit&) {}                                           // starts to share what was updated

 protected:
  // What a stage decides.
  virtual void prepare() {}        // the units are there
  virtual void place(Unit& unit);  // puts the parameters where they are to live
  // And as the reducer's policy, from stage 0: all_reduce. What is waited for leaves the sum of all ranks in unit.part.
  Tensor memory(size_t unit) override;
  std::function<void()> start(size_t unit, const Tensor& sum) override;
  void filled(size_t unit, const Tensor& flat) override;
  void forgotten() override;
  void ordered(const std::vector<size_t>& parameters) override { reducer_->reorder(parameters); }

  std::optional<parallel::Reducer> reducer_;  // its parameters and units have the numbers of those here
  std::unique_ptr<ShardedOptimizer> optimizer_;

 private:
  void listen();

  // step.cpp
  std::vector<bool> agree_on_used();
  bool check_finite(const StepOptions& o, const Tensor& squares, StepReport& report);
  bool has_all_squares() const;
  Tensor squares_of_blocks(double scale, const std::vector<bool>& used);
  double norm(const StepOptions& o, const Tensor& squares);

  // state.cpp
  Piece all_owned(const Parameter& p) const;  // at this rank

  int64_t first_bad_ = std::numeric_limits<int64_t>::max();  // parameter * ranks + rank of the first NaN or infinity in
                                                             // this rank's own gradients
  int64_t steps_ = 0;
};

/// Optimizer state in parts.
class Stage1 : public Stage {
 public:
  using Stage::Stage;
  void publish(Unit& unit) override;

 protected:
  void place(Unit& unit) override;
  void move_into_weights(Unit& unit);  // its parameters become views of unit.weights, with their values
  dist::Work reduce_to_owners(const Unit& unit, const Tensor& whole, const Tensor& part);  // which is this rank's
  std::function<void()> start(size_t unit, const Tensor& sum) override;
};

/// And gradients.
class Stage2 : public Stage1 {
 public:
  using Stage1::Stage1;
  void enter_no_sync() override;

 protected:
  Tensor memory(size_t unit) override;
  std::function<void()> start(size_t unit, const Tensor& sum) override;

 private:
  struct Lent {  // memory that units take turns in
    Tensor bytes;
    size_t unit = SIZE_MAX;
    uint64_t since = 0;
  };
  std::vector<Lent> pool_;
  uint64_t turns_ = 0;
};

/// Stage 3 is not seen by others: stage3.cpp.
std::unique_ptr<Stage> make_stage3(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                   const ZeroOptions& options, dist::ProcessGroup& group);
/// Made and built.
std::unique_ptr<Stage> make_stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers,
                                  const ZeroOptions& options, dist::ProcessGroup& group);

}  // namespace lockstep::zero
