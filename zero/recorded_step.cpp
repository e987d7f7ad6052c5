// A step inside a graph: the kernels of step.cpp, without the host looking at results.
//
//   before_replay()         replay, after forward and backward                            after_replay()
//   numbers from host ─▶ │  squares ─▶ norm, clip factor, skip flag ─▶ update  │ ─▶      reads norm and skip flag
//
// From stage 1 on, NCCL adds up over ranks a sum of squares for each block of a parameter. A block's sum is zero on all
// ranks but its owner, so any order gives the bits of the host's sum. One more element counts ranks that found
// non-finite values. This count does not show which ranks they are; the flags own_bad_ do, as in an unrecorded step.
// Other parts of the model add their sums, one number per parameter, before the norm is computed (OtherParts).
#include <cmath>

#include "tensor/ops.h"
#include "zero/sharded_optimizer.h"
#include "zero/stage.h"

namespace lockstep::zero {

double Stage::scale_of(const StepOptions& o) const {
  const double scale = o.grad_scale / group.size();
  return o.scaler ? scale / o.scaler->scale() : scale;
}

void Stage::record(const StepOptions& o, const std::vector<bool>& used) {
  LOCKSTEP_CHECK(
      options.spread.names.empty() && batch && !scaled,
      "[zero] capturing a step needs CUDA devices, no spread parameters (experts), and a gradient scale of at most 1; "
      "train without a graph (--no-graph)");
  LOCKSTEP_CHECK(
      !captured_ || captured_->used == used,
      "[zero] expected all graphs to capture steps of the same parameters, got a step of others; let every graph give "
      "gradients to the same ones");
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps += used[i];
  const AtEnd uncounted([&] {  // undo the count: only replays are steps, the recording is not
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps -= used[i];
  });
  optimizer_->collect_numbers(used);
  CapturedStep step{.used = used, .parts = {}, .own_bad = std::exchange(own_bad_, {})};
  for (const Unit& unit : units) step.parts.push_back(unit.part);
  step.has_norm = o.max_norm > 0 || o.want_norm || options.nonfinite != NonFinite::propagate;
  if (step.has_norm) {
    Tensor squares = squares_of_blocks(1, used);
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
  optimizer_->update(used, 1, 1);
  for (Unit& unit : units) unit.published.wait();
  written();
  captured_ = std::make_shared<const CapturedStep>(std::move(step));
}

void Stage::before_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& of) {
  const CapturedStep* const step = of ? of.get() : captured_.get();
  LOCKSTEP_CHECK(step, "[zero] before_replay() without a captured step; capture step() in a Graph first");
  const double scale = scale_of(o);
  LOCKSTEP_CHECK(std::abs(scale) <= 1, "[zero] expected a scale of at most 1 for a captured step, got ", scale,
                 "; make this step without the graph");
  LOCKSTEP_CHECK(step->has_norm || o.max_norm == 0, "[zero] the step was captured without max_norm, got max_norm ",
                 o.max_norm, "; capture it with one");
  check_unpinned();
  release();  // the replay changes the parameters that were gathered
  ++steps_;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps += step->used[i];
  optimizer_->collect_numbers(step->used);
  batch->set({.scale = scale, .max_norm = o.max_norm, .skips = options.nonfinite != NonFinite::propagate});
}

StepReport Stage::after_replay(const StepOptions& o, const std::shared_ptr<const CapturedStep>& of) {
  const CapturedStep* const step = of ? of.get() : captured_.get();
  LOCKSTEP_CHECK(step, "[zero] after_replay() without a captured step; capture step() in a Graph first");
  const StepControl control = batch->read();
  StepReport report;
  if (step->has_norm) report.norm = control.norm;
  if (control.skip) {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps -= step->used[i];
    report.norm = NAN;
    for (size_t u = 0; u < units.size(); ++u) units[u].part = step->parts[u];
    const AtEnd forgets([this] { forgotten(); });
    own_bad_ = step->own_bad;
    check_finite(o, {}, report);
    return report;
  }
  written();
  if (options.nonfinite != NonFinite::propagate) settle(report, o.scaler, options.nonfinite, "[zero] ", steps_);
  return report;
}

}  // namespace lockstep::zero
