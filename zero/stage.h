#pragma once
// What all stages share; stage 0 as it stands: every rank keeps everything, and gradients are all-reduced. Each stage adds one thing:
//
//   Stage   collect gradients by unit, reduce, step          stage.cpp, step.cpp
//   Stage1  optimizer state in parts                         stage1.cpp
//   Stage2  and gradients                                    stage2.cpp
//   Stage3  and parameters                                   stage3.cpp
//
// Not for users: they see zero.h.
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "dist/summation_tree.h"
#include "zero/swap.h"
#include "zero/zero.h"

namespace lockstep::zero {

struct Parameter {
  std::string name;
  Variable variable;
  optim::Optimizer* optimizer = nullptr;  // none: frozen
  int group = 0;                          // of the optimizer
  dist::ProcessGroup* ranks = nullptr;    // that have it
  size_t unit = SIZE_MAX, place = 0;      // no unit: frozen, below stage 3
  int64_t steps = 0;                      // updates so far
  int64_t first_block = 0;                // of its norm, among those of all
  bool seen = false;                      // had a gradient in this pass
  bool used = false;                      // and since the last step
  bool stashed = false;                   // the placeholder was taken away because a gradient comes
  int hooks[2] = {0, 0};
  bool trains() const { return optimizer != nullptr; }
};

/// What this rank owns of a parameter; with a ratio of offload below 1 one parameter may have two.
struct Piece {
  size_t parameter = 0;
  dist::Range range;             // of the parameter's elements
  int64_t at = 0;                // where it starts in the shard
  Offload home = Offload::none;  // of what the optimizer keeps; nvme: in regions of the unit
  std::vector<std::string> keys; // nvme: their names
  bool started = false;          // the optimizer keeps something
  std::map<std::string, Tensor> state;  // flat, of range.size() elements; "master" for 16-bit parameters. Ask Stage::kept().
};

/// Parameters that travel together.
struct Unit {
  std::string tag;                // of its collectives: ranks that disagree are told
  dist::ProcessGroup* ranks = nullptr;  // that have its parameters
  std::vector<size_t> members;    // parameters, as in the layout
  Layout layout;
  DType dtype = f32, gradient_dtype = f32;
  std::vector<Piece> pieces;      // of trained parameters

  // Parameters
  Tensor weights;                 // from stage 1 on: flat, the parameters are views of it
  Tensor shard;                   // stage 3: this rank's part, in memory of its own
  bool swapped = false;           // stage 3: no, in a file
  int64_t shard_at = 0;           // where there
  std::map<std::string, int64_t> regions;  // of the file of optimizer state: a shard of values of each name

  // Gradients
  int waiting = 0;                // parameters whose gradient is still to come in this pass
  Tensor buffer;                  // below stage 2: this rank's gradients, flat
  dist::TreeSum local;            // those of micro-batches inside no_sync
  Tensor part;                    // of the last reduction: the sum over ranks of what this rank owns
  dist::TreeSum reduced;          // those before it
  std::function<void()> finish;   // ends the collective that was started

  // Stage 3
  bool trains = true, persistent = true;
  std::string module;             // who gathers it
  bool gathered = false;          // the memory is there, and filled when fetch is done
  dist::Work fetch;
  int active = 0, pins = 0;       // forwards and gathered() scopes that want it now
  uint64_t needed_from = 0;       // in backward: the number before the first node of the call that needs it

  bool holds_gradients() const { return local.count() > 0 || part.defined() || finish; }
};

class Stage {
 public:
  Stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options, dist::ProcessGroup& group);
  virtual ~Stage();
  Stage(const Stage&) = delete;
  /// The second half of the constructor, which asks the stage.
  void build();

  Tensor shard_of(const Unit& unit);                              // stage 3: this rank's part, live, flat
  std::map<std::string, Tensor> kept(Unit& unit, Piece& piece);   // what the optimizer keeps for it, live, flat
  std::map<std::string, Tensor> make_kept(Unit& unit, Piece& piece);  // the same, zeros when there was nothing

  StepReport step(const StepOptions& o);
  void forget();  // all gradients
  virtual void enter_no_sync() { ++no_sync_depth_; }
  void leave_no_sync() { --no_sync_depth_; }
  void pause(bool wanted);

  size_t index_of(const Variable& variable) const;
  virtual void pin(size_t /*unit*/) {}
  virtual void unpin(size_t /*unit*/) {}
  /// Everybody takes a rank's values of these parameters, which are pinned.
  void take_from(int rank, const std::vector<size_t>& parameters);
  virtual void register_external(nn::Module&, const Variable&) {}

  // state.cpp
  std::vector<StatePiece> state(bool to_load, bool make);
  std::map<std::string, double> numbers() const;
  void load_numbers(const std::map<std::string, double>& numbers);
  void loaded();
  optim::OptimizerState whole_state();
  void load_whole_state(const optim::OptimizerState& state);

  nn::Module& module;
  const std::vector<optim::Optimizer*> optimizers;
  const ZeroOptions options;
  dist::ProcessGroup& group;
  std::vector<Parameter> parameters;  // of the module, in the order of fields()
  std::vector<Unit> units;            // in the order in which gradients are expected

 protected:
  // What a stage decides.
  virtual bool is_cut() const { return false; }               // units are, into a shard for each rank
  virtual void plan();                                        // makes the units
  virtual void place(Unit& unit);                             // puts the parameters where they are to live
  virtual Tensor weight(Unit& unit, const Piece& piece);      // the parameter's elements that a piece owns, flat
  virtual Tensor gradient_memory(Unit& unit);                 // for a micro-batch's gradients, flat
  virtual void reduce(Unit& unit, Tensor whole);              // starts the sum over ranks; finish() leaves it in unit.part
  virtual void publish(Unit&) {}                              // starts to share what was updated
  virtual void pass_begins() {}
  virtual void pass_ends() {}
  virtual void gradient_arrived(Unit&) {}                     // all of the unit's in this pass
  virtual bool is_part_own() const { return false; }          // unit.part is memory of its own, not of unit.buffer

  int rank() const { return group.rank(); }
  int shards(const dist::ProcessGroup& ranks) const { return is_cut() ? ranks.size() : 1; }
  int shard_number(const Unit& unit) const { return is_cut() ? unit.ranks->rank() : 0; }
  dist::Range shard(const Unit& unit) const { return unit.layout.range(shard_number(unit)); }  // this rank's, of the whole
  bool is_spread(const Parameter& p) const { return p.ranks != &group; }
  std::string list(const std::vector<size_t>& indices) const;
  [[noreturn]] void fail_everywhere(const std::string& message);
  /// What fails at a disk fails at all ranks.
  template <class Fn>
  void on_files(Fn&& fn) {
    std::string message;
    try {
      return fn();
    } catch (const Error& error) {
      message = error.what();
    }
    fail_everywhere(message);
  }
  void check_spread() const;
  void begin_pass();
  void finish(Unit& unit) { if (unit.finish) std::exchange(unit.finish, nullptr)(); }
  /// Starts a collective on the unit's ranks, which unit.finish waits for; then() comes after it.
  void start(Unit& unit, dist::Work work, std::function<void()> then = {});
  void add_unit(std::vector<size_t> members, int owner, const std::string& module = "");
  std::vector<int> owners() const;        // of parameters that cannot be cut, among the ranks that have them; -1 for the others
  std::string kind_of(size_t parameter, int owner) const;  // a unit has parameters of one kind
  Tensor value_of(const Parameter& p);    // whole, also when it was built in an Init scope

  Tensor shard_in_memory(size_t unit);
  void read_shard(size_t unit);

  Device device_ = cpu;  // of all parameters (cpu for any of the CPU's); what is offloaded is on the CPU
  bool in_pass_ = false;
  Swap swap_;

 private:
  void before_add(size_t i);
  void arrived(size_t i);
  void end_pass();
  void abandon_pass() noexcept;
  void settle(Unit& unit);
  void launch();
  void fill(Unit& unit, const Tensor& whole);
  void put_placeholders(Unit& unit);
  void notice_cleared();
  void agree_on_order();
  Tensor placeholder(const Parameter& p) const;
  bool is_placeholder(const Tensor& grad) const;

  // step.cpp
  std::vector<bool> agree_on_used();
  void add_from_others(std::map<std::string, Tensor>& tensors, std::map<std::string, double>& numbers);
  bool check_finite(const StepOptions& o, StepReport& report);
  Tensor gradient(Unit& unit, int64_t at, int64_t n, double scale);
  double norm(const StepOptions& o, double scale, const std::vector<bool>& used);

  // tiles.cpp, offload.cpp
  struct Tile;
  std::vector<std::string> keys_of(const Parameter& p) const;
  Device home_of(const Piece& piece) const { return piece.home == Offload::none ? device_ : Device(cpu); }  // where it is updated
  void plan_offload();
  void find_homes();
  int64_t plan_regions(Unit& unit, int64_t end);
  int64_t tile_size(const Unit& unit) const;
  int64_t tile_bytes(const Unit& unit) const;
  std::vector<Tile> tiles_of(size_t u, const std::vector<bool>& used);
  void update(const std::vector<bool>& used, double scale, double clip);
  void update(Unit& unit, Piece& piece, dist::Range part, const Tensor& gradient, const Tile& tile, const Tensor& buffer);

  int no_sync_depth_ = 0;
  bool paused_ = false;
  bool syncing_ = false;
  size_t next_launch_ = 0;
  std::vector<size_t> order_;      // in which units are reduced
  std::vector<size_t> completed_;  // in which they were complete in the first pass
  bool ordered_ = false;
  int64_t first_bad_ = std::numeric_limits<int64_t>::max();  // parameter * ranks + rank of the first NaN or infinity in this rank's own gradients
  int64_t steps_ = 0, blocks_ = 0;
  Tensor placeholder_;             // emptied storage: reading it is an error
};

/// Optimizer state in parts.
class Stage1 : public Stage {
 public:
  using Stage::Stage;

 protected:
  bool is_cut() const override { return true; }
  void place(Unit& unit) override;
  void move_into_weights(Unit& unit);  // its parameters become views of unit.weights, with their values
  void reduce(Unit& unit, Tensor whole) override;
  void publish(Unit& unit) override;
};

/// And gradients.
class Stage2 : public Stage1 {
 public:
  using Stage1::Stage1;
  void enter_no_sync() override;

 protected:
  Tensor gradient_memory(Unit& unit) override;
  void reduce(Unit& unit, Tensor whole) override;
  bool is_part_own() const override { return true; }

 private:
  struct Lent {  // memory that units take turns in
    Tensor bytes;
    Unit* unit = nullptr;
    uint64_t since = 0;
  };
  std::vector<Lent> pool_;
  uint64_t turns_ = 0;
};

/// Stage 3 is not seen by others: stage3.cpp.
std::unique_ptr<Stage> make_stage3(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options, dist::ProcessGroup& group);
/// Made and built.
std::unique_ptr<Stage> make_stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& options, dist::ProcessGroup& group);

}  // namespace lockstep::zero
