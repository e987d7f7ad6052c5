// The optimizer step over shards, the same for all stages:
//
//   gradients × scale (f32) ─▶ sums of squares, if a norm is wanted ─▶ agree: all finite? ─▶ norm
//                           ─▶ clip ─▶ update every tile (update.cpp) ─▶ gather (stage 1: all_gather)
//
// On a CUDA device scale and clip are applied by the kernels that read the gradients: one kernel for all squares, and
// one per dtype for all updates.
//
// Gradients are read once: if a sum of squares is finite, so are its gradients. Elements are searched for NaN and
// infinity only if a sum is not finite, or no norm is wanted.
//
// Reproducibility. The scale contains all divisors (ranks, accumulation, loss scale) and is applied in f32 after the
// sum, so results do not depend on which rank had which micro-batch. A norm is a sum over fixed blocks of each
// parameter. Each block lies on one rank; its sum is added into a list that is zero on all other ranks, so every rank
// adds the same numbers in the same order as optim::clip_grad_norm(). Blocks of experts' parameters with the
// same index are added together, so that the norm covers all experts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/at_end.h"
#include "base/suggest.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "optim/optimizer.h"
#include "parallel/agreement.h"
#include "tensor/graph.h"
#include "tensor/nonfinite.h"
#include "tensor/ops.h"
#include "trace/trace.h"
#include "zero/gather.h"

namespace lockstep::zero {
namespace {

constexpr int64_t none_bad = std::numeric_limits<int64_t>::max();
static_assert(StepBatch::chunk == norm_block);

}  // namespace

void adapt(const StepReport& report, optim::DynamicLossScaler* scaler, NonFinite rule, const char* by, int64_t step) {
  const std::string where =
      str("first in the gradient of ", report.first_nonfinite, " at rank ", report.rank, ", in step ", step);
  if (scaler) {
    try {
      scaler->update(report.skipped);
    } catch (const Error& error) { fail(str(error.what(), "; ", where)); }
  }
  LOCKSTEP_CHECK(!report.skipped || rule == NonFinite::skip, by, "a gradient is NaN or infinite, ", where,
                 "; find the operation that made it with AnomalyMode. Nothing was changed");
}

void Stage::act(parallel::Do what, const StepOptions& o, StepReport& report) {
  using parallel::Do;
  const NoGrad no_grad;
  if (what == Do::check) check_call(o);
  const trace::Scope scope("zero step", trace::Category::optimizer, {{"action", name_of(what)}});
  try {
    switch (what) {
      case Do::check: return check(o, report);
      case Do::norm: return norm(o, report);
      case Do::update: return update(o, report);
      case Do::gather: return gather();
      default: finish_step(o, report); break;
    }
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

/// Throws an Error if step() may not be called now.
void Stage::check_call(const StepOptions& o) {
  LOCKSTEP_CHECK(!reducer_->in_pass(),
                 "[zero] step() was called inside a backward; call it after backward() has returned");
  LOCKSTEP_CHECK(o.max_norm >= 0 && std::isfinite(o.grad_scale),
                 "[zero] expected max_norm >= 0 and a finite grad_scale, got ", o.max_norm, " and ", o.grad_scale);
  LOCKSTEP_CHECK(!o.scaler || options.nonfinite == NonFinite::skip,
                 "[zero] loss scaling needs ZeroOptions::nonfinite = NonFinite::skip; set it");
  check_unpinned();
  reducer_->notice_cleared();
  trace::memory();  // samples the memory while gradients exist
  for (const Unit& unit : units) {
    if (!unit.trains) continue;
    if (reducer_->buckets[unit.number].sum.count() > 0)
      fail_everywhere(
          "[zero] step() after a backward inside no_sync(): the last micro-batch's backward must run outside of it, "
          "because it reduces the sum of all micro-batches");
    if (!unit.grad_shard.defined()) fail_everywhere("[zero] step() expected a backward since the last step; call it");
  }
}

void Stage::check(const StepOptions& o, StepReport& report) {
  used_ = agree_on_used();
  scale_ = scale_of(o);
  // On CUDA the kernels that read the gradients can apply a scale of at most 1, which keeps finite gradients finite.
  if (!device.is_cpu() && !batch) batch.emplace(device);
  scaled = !batch || !(std::abs(scale_) <= 1);
  for (Unit& unit : units) {
    if (!unit.trains) continue;
    if (unit.reduced.count() > 0) {
      unit.reduced.add(std::move(unit.grad_shard));
      unit.grad_shard = unit.reduced.take();
    }
    if (scaled && is_wide(unit.gradient_dtype) && scale_ != 1) mul_scalar_(unit.grad_shard, scale_);
  }
  if (Graph::is_capturing()) return begin_record(o);
  ++steps_;
  squares_ = o.max_norm > 0 || o.want_norm ? squares_of_blocks(scale_, used_) : Tensor();
  if (options.nonfinite != NonFinite::propagate) check_finite(o, squares_, report);
}

void Stage::norm(const StepOptions& o, StepReport& report) {
  if (Graph::is_capturing()) record_norm(o);
  else if (squares_.defined()) report.norm = norm_of(o, std::exchange(squares_, {}));
}

void Stage::gather() {
  if (is_cut()) {
    const Waiting waiting(&Waited::gather);
    for (Unit& unit : units) unit.gather_work.wait();
  }
  const bool records = Graph::is_capturing();  // a recording does not count as a step, its replays do
  written(records ? std::vector<bool>(parameters.size()) : used_);
  if (records) captured_ = std::make_shared<const CapturedStep>(std::move(recording_));
}

void Stage::finish_step(const StepOptions& o, const StepReport& report) {
  if (options.nonfinite != NonFinite::propagate && !Graph::is_capturing())
    zero::adapt(report, o.scaler, options.nonfinite, "[zero] ", steps_);
}

void Stage::check_unpinned() const {
  for (const Unit& unit : units)
    LOCKSTEP_CHECK(!gathers() || gathers()->states[unit.number].pins == 0,
                   "[zero] step() was called while gathered() holds ", parameters[unit.parameters[0]].name,
                   "; end that scope first");
}

/// Returns true for each parameter that any rank used. The others are not updated (no weight decay, no momentum), like
/// parameters without .grad in a plain optimizer.
std::vector<bool> Stage::agree_on_used() {
  std::vector<bool> used(parameters.size());
  std::vector<std::string> unused;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    used[i] = reducer_->parameters[i].used && p.variable.requires_grad();
    if (reducer_->parameters[i].trains() && !used[i]) unused.push_back(p.name);
  }
  if (!options.ignore_unused_parameters) {
    if (unused.empty()) return used;
    fail_everywhere(str("[zero] ", unused.size(),
                        " parameters got no gradient since the last step: ", list_names(unused),
                        ". The loss does not depend on them. Set ignore_unused_parameters = true, or freeze them "
                        "(requires_grad_(false))"));
  }
  if (Graph::is_capturing()) {  // a recording cannot ask the other ranks: use their answer of the previous step
    LOCKSTEP_CHECK(used == used_here_,
                   "[zero] a step can only be captured if it uses the same parameters as the previous step; make such "
                   "a step before the capture");
    return used_anywhere_;
  }
  const std::vector<bool> mine = used_here_ = used;
  const auto agree = [&](dist::ProcessGroup& ranks) {
    const std::vector<bool> any = parallel::used_by_any(mine, ranks);
    for (size_t i = 0; i < used.size(); ++i)
      if (parameters[i].ranks == &ranks) used[i] = any[i];
  };
  agree(group);
  if (!options.experts.names.empty()) agree(*options.experts.group);
  used_anywhere_ = used;
  return used;
}

/// Returns the key of the first gradient with NaN or infinity on this rank; the step reports the smallest key of all
/// ranks. The key of a rank's own gradient, before the sum over ranks, is parameter * ranks + rank. looks_at_sums: also
/// searches the sums in this rank's shards, whose keys are larger. The host reads all flags in one transfer.
int64_t Stage::first_bad(bool looks_at_sums) const {
  std::vector<int64_t> numbers;
  std::vector<Tensor> sums, found;
  if (own_bad_.defined()) {
    found.push_back(own_bad_);
    for (const Unit& unit : units) numbers.insert(numbers.end(), unit.parameters.begin(), unit.parameters.end());
  }
  for (const Unit& unit : units) {
    if (!looks_at_sums || !unit.trains) continue;
    for (const OwnedPiece& piece : unit.pieces) {
      sums.push_back(unit.grad_shard.narrow(0, piece.at, piece.range.size()));
      numbers.push_back(int64_t(parameters.size() + piece.parameter));
    }
  }
  if (!sums.empty()) {
    found.push_back(zeros({int64_t(sums.size())}, {.dtype = i32, .device = device}));
    find_nonfinite(sums, found.back());
  }
  int64_t first = none_bad;
  if (found.empty()) return first;
  const std::vector<int32_t> is_bad = cat(found).to_vector<int32_t>();
  for (size_t i = 0; i < is_bad.size(); ++i)
    if (is_bad[i]) first = std::min(first, numbers[i] * group.size() + rank());
  return first;
}

/// Looks for non-finite values in each rank's own gradients, and in the sums over ranks, which can overflow even if all
/// gradients are finite.
void Stage::check_finite(const StepOptions& o, const Tensor& squares, StepReport& report) {
  const int64_t count = int64_t(parameters.size());
  const bool known = squares.defined() && has_all_squares() && all_finite(squares);
  const int64_t first = dist::all_reduced<int64_t>(
      {first_bad(!known)}, group, {.op = dist::ReduceOp::min, .tag = "zero first gradient that is not finite"})[0];
  if (first != none_bad) {
    report.skipped = true;
    const Parameter& found = parameters[size_t(first / group.size() % count)];
    const int finder = int(first % group.size());
    report.first_nonfinite = is_expert(found) ? dist::broadcast_text(found.name, finder, group) : found.name;
    report.rank = group.world_rank(finder);
  }
  if (o.others) o.others->agree(report);
}

/// True if squares_of_blocks() covers all gradients of this rank. False if several ranks have the same expert
/// parameters: only one of these ranks counts them.
bool Stage::has_all_squares() const { return options.experts.names.empty() || is_cut(); }

/// Returns the sum of squares of each block that this rank owns, and zero for all other blocks, on the CPU. While the
/// step is being recorded, the result stays on the device, with one more element, in which ranks that found NaN or
/// infinity are counted.
Tensor Stage::squares_of_blocks(double scale, const std::vector<bool>& used) {
  const bool records = Graph::is_capturing();
  const Tensor squares = zeros({norm_blocks_of_all + records}, {.dtype = f64, .device = device});
  std::vector<StepBatch::Squares> of_pieces;  // for one kernel
  for (Unit& unit : units) {
    if (!has_all_squares() && unit.group->rank() != 0) continue;
    for (const OwnedPiece& piece : unit.pieces) {
      if (!used[piece.parameter]) continue;
      const int64_t first = parameters[piece.parameter].first_block + piece.range.begin / norm_block;
      if (!scaled) {
        of_pieces.push_back({unit.grad_shard.narrow(0, piece.at, piece.range.size()), first});
        continue;
      }
      const Tensor g = gradient(unit, {piece.at, piece.at + piece.range.size()}, scale);
      const int64_t n = g.numel(), full = n / norm_block;
      if (full > 0)
        squares.narrow(0, first, full)
            .copy_(sum_squares(g.narrow(0, 0, full * norm_block).view({full, norm_block}), {1}, false, f64));
      if (n > full * norm_block)
        squares.narrow(0, first + full, 1)
            .copy_(sum_squares(g.narrow(0, full * norm_block, n - full * norm_block), {}, false, f64));
    }
  }
  if (!scaled) {
    if (!records) batch->set({.scale = scale});
    batch->add_squares(of_pieces, squares);
  }
  return records ? squares : squares.to(cpu);
}

double Stage::norm_of(const StepOptions& o, const Tensor& squares) {
  if ((is_cut() && group.size() > 1) || !options.experts.names.empty())
    group.all_reduce(squares, {.tag = "zero squares of gradients"});
  const double* block = squares.data<double>();
  double total = 0;
  std::vector<std::pair<std::string, double>> all;
  for (const Parameter& p : parameters) {
    if (!p.trains()) continue;
    double sum = 0;
    for (int64_t b = 0; b < norm_blocks(p.variable.numel()); ++b) sum += *block++;
    const double n = optim::norm_of_squares(sum, p.variable.dtype());
    total += n * n;
    if (o.others) all.emplace_back(p.name, sum);
  }
  return o.others ? o.others->norm(all) : std::sqrt(total);
}

// --- a step inside a graph: the same kernels, without the host looking at results ---
//
//   before_replay()         replay, after forward and backward                            after_replay()
//   numbers from host ─▶ │  squares ─▶ norm, clip factor, skip flag ─▶ update  │ ─▶      reads norm and skip flag
//
// From stage 1 on, NCCL adds up over ranks a sum of squares for each block of a parameter. A block's sum is zero on all
// ranks but its owner, so any order gives the bits of the host's sum. One more element counts ranks that found
// non-finite values. This count does not show which ranks they are; the flags own_bad_ do, as in an unrecorded step.
// Other parts of the model add their sums, one number per parameter, before the norm is computed (OtherParts).

double Stage::scale_of(const StepOptions& o) const {
  const double scale = o.grad_scale / group.size();
  return o.scaler ? scale / o.scaler->scale() : scale;
}

void Stage::begin_record(const StepOptions& o) {
  LOCKSTEP_CHECK(
      options.experts.names.empty() && batch && !scaled,
      "[zero] capturing a step needs CUDA devices, no parameters of experts, and a gradient scale of at most 1; "
      "train without a graph (--no-graph)");
  LOCKSTEP_CHECK(
      !captured_ || captured_->used == used_,
      "[zero] expected the captured steps of all graphs to update the same parameters, got a step that updates others; "
      "give gradients to the same parameters in every graph");
  collect_numbers(used_);
  recording_ = {.used = used_, .grad_shards = {}, .own_bad = std::exchange(own_bad_, {})};
  for (const Unit& unit : units) recording_.grad_shards.push_back(unit.grad_shard);
  recording_.has_norm = o.max_norm > 0 || o.want_norm || options.nonfinite != NonFinite::propagate;
}

void Stage::record_norm(const StepOptions& o) {
  if (!recording_.has_norm) return;
  Tensor squares = squares_of_blocks(1, used_);
  const Tensor found = batch->found();
  if (is_cut() && group.size() > 1) {
    const Tensor all = squares.narrow(0, norm_blocks_of_all, 1);
    all.copy_(found);
    group.all_reduce(squares, {.tag = "zero squares of gradients"});
    found.copy_(all);
  }
  std::vector<NormPiece> norms;
  for (const Parameter& p : parameters)
    if (p.trains()) norms.push_back({p.first_block, norm_blocks(p.variable.numel()), p.variable.dtype() == f64});
  if (o.others) {
    const Tensor own = empty({int64_t(norms.size()) + 1}, {.dtype = f64, .device = device}),
                 all = own.narrow(0, int64_t(norms.size()), 1);
    batch->add_up(norms, squares, own);
    all.copy_(found);
    squares = o.others->captured_norm(own, norms);
    found.copy_(all);
  }
  batch->take_norm(norms, squares);
}

void Stage::before_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& step) {
  LOCKSTEP_CHECK(step, "[zero] before_replay() without a captured step; capture step() in a Graph first");
  const double scale = scale_of(o);
  LOCKSTEP_CHECK(std::abs(scale) <= 1, "[zero] expected a scale of at most 1 for a captured step, got ", scale,
                 "; make this step without the graph");
  LOCKSTEP_CHECK(step->has_norm || o.max_norm == 0, "[zero] the step was captured without max_norm, got max_norm ",
                 o.max_norm, "; capture it with one");
  check_unpinned();
  if (gathers()) gathers()->release_all();  // the replay changes the parameters that were gathered
  ++steps_;
  collect_numbers(step->used);
  batch->set({.scale = scale, .max_norm = o.max_norm, .skips = options.nonfinite != NonFinite::propagate});
}

StepReport Stage::after_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& step) {
  LOCKSTEP_CHECK(step, "[zero] after_replay() without a captured step; capture step() in a Graph first");
  const StepControl control = batch->read();
  StepReport report;
  if (step->has_norm) report.norm = control.norm;
  if (control.skip) {
    report.norm = NAN;
    for (size_t u = 0; u < units.size(); ++u) units[u].grad_shard = step->grad_shards[u];
    const AtEnd forgets([this] { discarded(); });
    own_bad_ = step->own_bad;
    check_finite(o, {}, report);
  } else {
    written(step->used);
  }
  finish_step(o, report);
  return report;
}

}  // namespace lockstep::zero
