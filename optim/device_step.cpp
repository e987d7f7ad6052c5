// Steps on CUDA devices: one kernel updates all parameters of a device and dtype (optim/step_batch.h). The stages of a
// step, in order:
//
//   options (host) ─▶ squares, non-finite flags ─▶ norm, clip, skip ─▶ update of all parameters
//
// A graph captures everything but the first stage, which before_replay() runs before each replay. The device counts the
// steps that it skips. When the host needs its step counts, count_steps() subtracts the skipped steps from them.
#include <algorithm>
#include <cmath>

#include "optim/optimizer.h"
#include "optim/step_batch.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::optim {

struct Optimizer::OnDevice {
  explicit OnDevice(Device device) : batch(device) {}
  StepBatch batch;
  std::vector<StepBatch::Squares> squares;
  std::vector<NormPiece> norms;
  int64_t sums = 0;
  std::vector<ParameterState*> counted;  // parameters of the last step
  bool may_skip = false;                 // true: the device may have skipped some of the last steps
  // True: the last step was clipped_step(), and its outcome has not been read yet.
  bool has_outcome = false;
  bool knows_norm = false;  // true: that outcome includes the gradient norm
  bool replays = false;     // true: the last step was a replay of a graph

  std::vector<Taking> recorded;  // parameters of the captured step
  bool clips = false, has_norm = false;
  bool is_new = false;  // true: captured, but not replayed yet
  // True: the graph may write parameters after the optimizer's step. A replay does not change their versions, so the
  // f32 masters of 16-bit parameters are then compared with the parameters before each step.
  bool writes = false;
};

namespace {

bool wants_norm(const ClippedStep& request) { return request.max_norm > 0 || request.skip_nonfinite; }

StepControl control_of(const ClippedStep& request, bool clips) {
  if (!clips) return {};
  return {.scale = request.grad_scale, .max_norm = request.max_norm, .skips = request.skip_nonfinite, .rounds = 1};
}

}  // namespace

Optimizer::Optimizer() = default;
Optimizer::~Optimizer() = default;

/// Returns the parameters that have a gradient, with their groups.
std::vector<Optimizer::Taking> Optimizer::taking_part() {
  std::vector<Taking> all;
  for (int g = 0; g < group_count(); ++g)
    for (Variable& parameter : groups_[size_t(g)])
      if (parameter.requires_grad() && parameter.grad().defined()) all.push_back({g, &parameter});
  return all;
}

void Optimizer::check_capture(const std::vector<Taking>& all) const {
  LOCKSTEP_CHECK(!Graph::is_capturing() || std::all_of(all.begin(), all.end(),
                                                       [](const Taking& t) { return t.parameter->device().is_cpu(); }),
                 "[", name(),
                 "] this step cannot be captured: it needs a rule that is a single kernel, no keep_average(), and, for "
                 "clipped_step(), one device; capture forward and backward only and call step() after replay()");
}

/// Collects in `at` the parameters and gradients of a step, and the numbers that its kernels read. numbers_only: only
/// the numbers, such as rates and step counts, which change between replays of a graph.
void Optimizer::collect(OnDevice& at, const std::vector<Taking>& all, double grad_scale, bool numbers_only) {
  at.batch.clear();
  at.squares.clear(), at.norms.clear(), at.counted.clear();
  at.sums = 0;
  for (const Taking& t : all) {
    Prepared p = numbers_only ? Prepared{t.parameter->tensor(), {}, {}, states_[t.parameter->impl().get()]}
                              : prepare(*t.parameter, true);
    if (numbers_only && size_of(p.parameter.dtype()) == 2) {
      const uint32_t version = p.parameter.storage()->version();
      at.writes |= at.is_new && p.state.known_version != version;
      if (at.writes) p.state.known_version = 0;
      master_of(p.parameter, p.state);
      p.state.known_version = version;
    }
    ++p.state.step;
    at.counted.push_back(&p.state);
    const StepBatch::Scope scope(at.batch, t.group, p.state.step, numbers_only);
    update(t.group, p.parameter, p.grad, p.state, p.low, grad_scale);
    if (numbers_only) continue;
    const int64_t chunks = (p.grad.numel() + StepBatch::chunk - 1) / StepBatch::chunk;
    at.norms.push_back({at.sums, chunks, p.grad.dtype() == f64});
    at.squares.push_back({p.grad, at.sums});
    at.sums += chunks;
  }
}

void Optimizer::step_on_device(const std::vector<Taking>& all, const ClippedStep& request, bool clips) {
  const Device device = all[0].parameter->device();
  std::unique_ptr<OnDevice>& found = on_device_[device.index];
  if (!found) found = std::make_unique<OnDevice>(device);
  OnDevice& at = *found;
  const bool records = Graph::is_capturing();
  const bool has_norm = clips && wants_norm(request);
  if (records) {
    const auto is_same = [](const Taking& a, const Taking& b) { return a.parameter == b.parameter; };
    LOCKSTEP_CHECK(
        at.recorded.empty() || (at.clips == clips && at.has_norm == has_norm &&
                                std::equal(all.begin(), all.end(), at.recorded.begin(), at.recorded.end(), is_same)),
        "[", name(),
        "] expected all graphs to capture the same kind of step with the same parameters; use another optimizer for "
        "another kind");
    const std::vector<ParameterState*> counted = at.counted;
    collect(at, all, clips ? 1 : request.grad_scale, false);
    for (ParameterState* state : at.counted) --state->step;  // the replays count as steps, the capture does not
    at.counted = counted;
    at.batch.check_recordable(name());
    at.recorded = all, at.clips = clips, at.has_norm = has_norm, at.is_new = true;
  } else {
    if (at.may_skip) count_steps();
    collect(at, all, clips ? 1 : request.grad_scale, false);
    at.batch.set(control_of(request, clips));
    at.may_skip = clips && request.skip_nonfinite;
    at.replays = false;
  }
  at.has_outcome = clips, at.knows_norm = has_norm;
  if (has_norm) {
    const Tensor sums = empty({std::max<int64_t>(at.sums, 1)}, {.dtype = f64, .device = device});
    at.batch.add_squares(at.squares, sums);
    at.batch.take_norm(at.norms, sums);
  }
  at.batch.launch();
  at.squares.clear();  // releases the gradients
  written(all);
}

void Optimizer::clipped_step(const ClippedStep& request) {
  LOCKSTEP_CHECK(request.max_norm >= 0, "[", name(), "] expected max_norm >= 0, got ", request.max_norm);
  LOCKSTEP_CHECK(!communicates(), "[", name(),
                 "] reduces gradients over ranks in its own step(): pass the clipping norm there");
  const NoGrad no_grad;
  const std::vector<Taking> all = taking_part();
  if (!Graph::is_capturing()) count_steps();
  for (auto& [device, at] : on_device_) at->has_outcome = false;
  last_ = {};
  if (all.empty()) return;
  const Device device = all[0].parameter->device();
  const bool is_one =
      std::all_of(all.begin(), all.end(), [&](const Taking& t) { return t.parameter->device() == device; });
  if (is_one && !device.is_cpu() && can_be_collected()) {
    trace::memory();
    const trace::Scope scope(name(), trace::Category::optimizer);
    return step_on_device(all, request, true);
  }
  check_capture(all);
  std::vector<Variable> parameters;
  std::map<std::pair<int, int>, std::vector<Tensor>> on_device;
  for (const Taking& t : all) {
    const Tensor& grad = t.parameter->checked_grad(name());
    on_device[{int(grad.device().type), grad.device().index}].push_back(grad);
    parameters.push_back(*t.parameter);
  }
  bool finite = true;
  if (request.grad_scale != 1 || request.skip_nonfinite)
    for (const auto& [where, grads] : on_device) finite &= unscale_(grads, request.grad_scale);
  last_.skipped = request.skip_nonfinite && !finite;
  if (wants_norm(request)) last_.norm = grad_norm(parameters);
  if (last_.skipped) return;
  if (request.max_norm > 0) clip_to_norm(parameters, last_.norm, request.max_norm);
  step();
}

void Optimizer::before_replay(const ClippedStep& request) {
  bool any = true;  // true: a captured step was found, or there is nothing to do because all parameters are on the CPU
  for (const auto& group : groups_)
    for (const Variable& p : group) any &= p.device().is_cpu();
  for (auto& [device, at] : on_device_) {
    if (at->recorded.empty()) continue;
    any = true;
    LOCKSTEP_CHECK(at->clips || !wants_norm(request), "[", name(),
                   "] the graph captured step(), which neither clips nor skips; capture clipped_step()");
    LOCKSTEP_CHECK(at->has_norm || !wants_norm(request), "[", name(),
                   "] clipped_step() was captured without max_norm and skip_nonfinite; capture it with one of them");
    if (at->may_skip && !at->replays) count_steps();
    at->replays = true;
    collect(*at, at->recorded, at->clips ? 1 : request.grad_scale, true);
    at->is_new = false;
    at->batch.set(control_of(request, at->clips), at->may_skip);
    at->may_skip |= request.skip_nonfinite;
    at->has_outcome = at->clips, at->knows_norm = at->has_norm;
  }
  LOCKSTEP_CHECK(
      any, "[", name(),
      "] before_replay() without a captured step, or after load_state(), which makes new tensors: capture the "
      "step anew");
}

/// Waits for the steps that the device may have skipped, and subtracts the skipped ones from the step counts.
void Optimizer::count_steps() {
  for (auto& [device, at] : on_device_) {
    if (!at->may_skip) continue;
    const StepControl control = at->batch.read();
    for (ParameterState* state : at->counted) state->step -= control.skipped;
    at->may_skip = at->has_outcome = false;
    last_ = {.norm = control.norm, .skipped = control.skip != 0};
  }
}

StepOutcome Optimizer::last_step() {
  count_steps();
  for (auto& [device, at] : on_device_) {
    if (!at->has_outcome) continue;
    const StepControl control = at->batch.read();
    at->has_outcome = false;
    last_ = {.norm = at->knows_norm ? control.norm : NAN, .skipped = control.skip != 0};
  }
  return last_;
}

/// Forgets captured steps: they refer to tensors of a state that is about to be replaced.
void Optimizer::forget_recorded() {
  count_steps();
  for (auto& [device, at] : on_device_) at->recorded.clear(), at->counted.clear();
}

}  // namespace lockstep::optim
