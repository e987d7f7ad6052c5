// The optimizer step over shards, the same for all stages:
//
//   gradients × scale (f32) ─▶ sums of squares, if a norm is wanted ─▶ agree: all finite? ─▶ norm
//                           ─▶ clip ─▶ update every tile (sharded_optimizer.cpp) ─▶ publish (stage 1: all_gather)
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
// adds the same numbers in the same order as optim::clip_grad_norm(). Blocks of spread parameters (experts) with the
// same index are added together, so that the norm covers all experts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/at_end.h"
#include "base/suggest.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "optim/clip.h"
#include "parallel/agreement.h"
#include "tensor/graph.h"
#include "tensor/nonfinite.h"
#include "tensor/ops.h"
#include "trace/trace.h"
#include "zero/sharded_optimizer.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

constexpr int64_t none_bad = std::numeric_limits<int64_t>::max();

bool is_wide(DType dtype) { return size_of(dtype) >= 4; }

static_assert(StepBatch::chunk == norm_block);

}  // namespace

void settle(const StepReport& report, optim::DynamicLossScaler* scaler, NonFinite rule, const char* by, int64_t step) {
  const std::string where =
      str("first in the gradient of ", report.first_nonfinite, " at rank ", report.rank, ", in step ", step);
  if (scaler) {
    try {
      scaler->update(report.skipped);
    } catch (const Error& error) { fail(str(error.what(), "; ", where)); }
  }
  LOCKSTEP_CHECK(!report.skipped || rule == NonFinite::skip, by, "a gradient is NaN or infinite, ", where,
                 "; AnomalyMode names the operation that made it. Nothing was changed");
}

StepReport Stage::step(const StepOptions& o) {
  const NoGrad no_grad;
  LOCKSTEP_CHECK(!reducer_->in_pass(),
                 "[zero] step() was called inside a backward; call it after backward() has returned");
  LOCKSTEP_CHECK(o.max_norm >= 0 && std::isfinite(o.grad_scale),
                 "[zero] expected max_norm >= 0 and a finite grad_scale, got ", o.max_norm, " and ", o.grad_scale);
  LOCKSTEP_CHECK(!o.scaler || options.nonfinite == NonFinite::skip,
                 "[zero] loss scaling needs .nonfinite = NonFinite::skip");
  check_unpinned();
  reducer_->notice_cleared();
  trace::memory();  // samples the memory while gradients exist
  const trace::Scope scope("zero step", trace::Category::optimizer);
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    if (!unit.trains) continue;
    if (reducer_->units[u].gradients.count() > 0)
      fail_everywhere(
          "[zero] step() after a backward inside no_sync(): the last micro-batch's backward must run outside of it, "
          "because it reduces the sum of all micro-batches");
    if (!unit.part.defined()) fail_everywhere("[zero] step() expected a backward since the last step");
  }
  const AtEnd forgets([this] { forget(); });
  const std::vector<bool> used = agree_on_used();
  const double scale = scale_of(o);
  // On CUDA the kernels that read the gradients can apply a scale of at most 1, which keeps finite gradients finite.
  if (!device.is_cpu() && !batch) batch.emplace(device);
  scaled = !batch || !(std::abs(scale) <= 1);
  for (Unit& unit : units) {
    if (!unit.trains) continue;
    if (unit.reduced.count() > 0) {
      unit.reduced.add(std::move(unit.part));
      unit.part = unit.reduced.take();
    }
    if (scaled && is_wide(unit.gradient_dtype) && scale != 1) mul_scalar_(unit.part, scale);
  }
  StepReport report;
  if (Graph::is_capturing()) {
    record(o, used);
    return report;
  }
  ++steps_;
  Tensor squares;
  if (o.max_norm > 0 || o.want_norm) squares = squares_of_blocks(scale, used);
  if (options.nonfinite != NonFinite::propagate && !check_finite(o, squares, report)) return report;
  if (squares.defined()) report.norm = norm(o, squares);
  const double clip = o.max_norm > 0 ? o.max_norm / (report.norm + 1e-6) : 1;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps += used[i];
  optimizer_->update(used, scale, clip);
  for (Unit& unit : units) unit.published.wait();
  written();
  return report;
}

/// Gives the parameters' storages new versions, so that a later write by anything but step() can be noticed.
void Stage::written() {
  for (const Parameter& p : parameters)
    if (p.trains()) optim::stamp(*p.variable.tensor().storage(), p.optimizer->name());
  see();
}

void Stage::see() {
  for (Parameter& p : parameters) p.seen = p.variable.tensor().storage()->version();
}

void Stage::check_unpinned() const {
  for (size_t u = 0; u < units.size(); ++u)
    LOCKSTEP_CHECK(!is_pinned(u), "[zero] step() was called while gathered() holds ",
                   parameters[units[u].parameters[0]].name, "; end that scope first");
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
  if (Graph::is_capturing()) {  // ranks cannot be asked inside a recording: use the previous answer
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
  if (!options.spread.names.empty()) agree(*options.spread.group);
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
    for (const Piece& piece : unit.pieces) {
      sums.push_back(unit.part.narrow(0, piece.at, piece.range.size()));
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

/// Returns false if the step must be skipped. Looks for non-finite values in each rank's own gradients, and in the sums
/// over ranks, which can overflow even if all gradients are finite.
bool Stage::check_finite(const StepOptions& o, const Tensor& squares, StepReport& report) {
  const int64_t count = int64_t(parameters.size());
  const bool known = squares.defined() && has_all_squares() && all_finite(squares);
  const int64_t first = dist::all_reduced<int64_t>(
      {first_bad(!known)}, group, {.op = dist::ReduceOp::min, .tag = "zero first gradient that is not finite"})[0];
  if (first != none_bad) {
    report.skipped = true;
    const Parameter& found = parameters[size_t(first / group.size() % count)];
    const int finder = int(first % group.size());
    report.first_nonfinite = is_spread(found) ? dist::broadcast_text(found.name, finder, group) : found.name;
    report.rank = group.world_rank(finder);
  }
  if (o.others) o.others->agree(report);
  settle(report, o.scaler, options.nonfinite, "[zero] ", steps_);
  return !report.skipped;
}

/// Returns the gradients, times `scale`, of n elements of the shard from `at` on, in f32 (f64 for f64 parameters).
Tensor Stage::gradient(Unit& unit, int64_t at, int64_t n, double scale) const {
  const bool in_its_dtype = is_wide(unit.gradient_dtype);
  Tensor part = unit.part.narrow(0, at, n);
  if (in_its_dtype && !scaled && scale != 1) part = mul_scalar(part, scale);
  const Tensor wide = part.to(unit.dtype == f64 ? f64 : f32);
  return in_its_dtype || scale == 1 ? wide : mul_scalar_(wide, scale);
}

/// True if squares_of_blocks() covers all gradients of this rank. False if several ranks have the same spread
/// parameters: only one of these ranks counts them.
bool Stage::has_all_squares() const { return options.spread.names.empty() || is_cut(); }

/// Returns the sum of squares of each block that this rank owns, and zero for all other blocks, on the CPU. While the
/// step is being recorded, the result stays on the device, with one more element, in which ranks that found NaN or
/// infinity are counted.
Tensor Stage::squares_of_blocks(double scale, const std::vector<bool>& used) {
  const bool records = Graph::is_capturing();
  const Tensor squares = zeros({norm_blocks_of_all + records}, {.dtype = f64, .device = device});
  std::vector<StepBatch::Squares> of_pieces;  // for one kernel
  for (Unit& unit : units) {
    if (!has_all_squares() && unit.group->rank() != 0) continue;
    for (const Piece& piece : unit.pieces) {
      if (!used[piece.parameter]) continue;
      const int64_t first = parameters[piece.parameter].first_block + piece.range.begin / norm_block;
      if (!scaled) {
        of_pieces.push_back({unit.part.narrow(0, piece.at, piece.range.size()), first});
        continue;
      }
      const Tensor g = gradient(unit, piece.at, piece.range.size(), scale);
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

double Stage::norm(const StepOptions& o, const Tensor& squares) {
  if ((is_cut() && group.size() > 1) || !options.spread.names.empty())
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

}  // namespace lockstep::zero
