// step() after the last micro-batch of a step:
//
//   losses and tokens of all ranks ─▶ ZeRO's step: unscale, check overflow, clip, update ─▶ next learning rate
//   ─▶ counters, printed line, reports of participants
//
// backward() divides gradients in advance only if a loss scale or prescale_gradients requires it. All other divisions
// are made once, on the sum, in f32: the bits do not depend on how micro-batches are distributed over ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dist/control.h"
#include "dist/numbers.h"
#include "engine/impl.h"
#include "tensor/memory.h"
#include "tensor/ops.h"
#include "zero/partition.h"

namespace lockstep::engine {

namespace {

struct BreakdownName {
  const char *key, *name;  // key in StepValues, name in the printed line
  double Breakdown::*of;
};
constexpr BreakdownName breakdown_names[] = {
    {"elapsed_time_ms_forward", "fwd", &Breakdown::forward},
    {"elapsed_time_ms_backward", "bwd", &Breakdown::backward},
    {"elapsed_time_ms_backward_inner", "bwd_inner", &Breakdown::inner},
    {"elapsed_time_ms_backward_allreduce", "bwd_allreduce", &Breakdown::reduce},
    {"elapsed_time_ms_step", "step", &Breakdown::step},
    {"elapsed_time_ms_read", "read", &Breakdown::read},
    {"elapsed_time_ms_write", "write", &Breakdown::write},
    {"elapsed_time_ms_gather", "gather", &Breakdown::gather},
    {"elapsed_time_ms_wait", "wait", &Breakdown::wait}};

}  // namespace

std::vector<double> EngineBase::Impl::sum_of_ranks(const std::vector<double>& mine, const char* tag) const {
  return group->size() == 1 ? mine : dist::all_reduced(mine, *group, {.tag = tag});
}

/// Computes the step's loss and number of tokens, summed in the order of the micro-batches.
void EngineBase::Impl::gather_losses() {
  if (part) {
    std::vector<Tensor> losses;
    for (const Micro& one : micros) losses.push_back(one.loss);
    loss = part->engine->mean_loss(losses);
    const auto& seconds = part->engine->times();
    if (!seconds.empty()) times.inner += 1e3 * seconds[size_t(world.rank())].busy;
    return;
  }
  const int64_t count = int64_t(micros.size()), shares = count * group->size(), replica = group->rank() / context_ranks;
  // The losses of all shares of micro-batches, then their tokens (-1: the loss is a mean). Each rank sets its own.
  std::vector<double> all(size_t(2 * shares));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = are_interleaved() ? i * replicas() + replica : replica * count + i,
                  at = number * context_ranks + group->rank() % context_ranks;
    const Micro& micro = micros[size_t(i)];
    all[size_t(at)] = micro.loss.defined() ? micro.loss.item() : NAN;
    all[size_t(shares + at)] = double(micro.tokens);
  }
  all = sum_of_ranks(all, "losses of a step");
  loss = tokens = 0;
  bool sums = false, means = false;
  for (int64_t at = 0; at < shares; ++at) {
    loss += all[size_t(at)];
    const double of_micro = all[size_t(shares + at)];
    (of_micro < 0 ? means : sums) = true;
    tokens += std::max(of_micro, 0.0);
  }
  LOCKSTEP_CHECK(
      !(sums && means),
      "[step] expected all ranks to call backward(loss), or all to call backward(loss_sum, tokens), got both; "
      "call the same one on every rank");
  LOCKSTEP_CHECK(!sums || tokens > 0,
                 "[step] expected at least one token in the micro-batches of a step, got 0 at all ranks; "
                 "skip that step");
  loss /= sums ? tokens : double(shares);
}

void EngineBase::Impl::step(std::optional<double> metric) {
  check_open("step");
  check_step();
  const bool boundary = is_boundary();
  LOCKSTEP_CHECK(!boundary || !wants_metric() || metric, needs_metric);
  end_micro_batch();
  if (!boundary) return;
  now = {.metric = metric};
  std::vector<parallel::StepAction> list;
  parallel::add_tail(list, true);
  parallel::run(list, [this](const parallel::StepAction& a) { act(a); });
}

bool EngineBase::Impl::wants_metric() const {
  return std::any_of(schedules.begin(), schedules.end(), [](const optim::Schedule* s) { return s->wants_metric(); });
}

zero::NonFinite EngineBase::Impl::nonfinite() const {
  return scaler || grad_scaler ? zero::NonFinite::skip : zero_options(config).nonfinite;
}

/// Returns the options of the coming update. ZeRO multiplies gradients by grad_scale / (ranks x loss scale).
zero::StepOptions EngineBase::Impl::step_options() {
  const double share = tokens > 0 ? group->size() / tokens : 1 / double(accumulation);
  return {.grad_scale = share * loss_scale() / factor.value_or(1),
          .max_norm = config.gradient_clipping,
          .want_norm = true,
          .scaler = scaler ? &*scaler : nullptr,
          .others = part.get()};
}

void EngineBase::Impl::begin_update() {
  now.scale_before = loss_scale();
  now.backwards = int64_t(micros.size());
  now.options = step_options();
}

void EngineBase::Impl::end_update() {
  micros.clear(), factor.reset();
  call_participants();
  const bool skipped = now.done.skipped;
  if (grad_scaler) grad_scaler->update(skipped);
  norm = now.done.norm;
  skipped_steps += skipped;
  if (skipped && !grad_scaler) return;  // with a GradScaler, schedules advance even then
  std::optional<double>& metric = now.metric;
  if (metric && world.size() > 1)  // all ranks must get the same learning rate
    *metric = dist::all_reduced<double>({*metric}, world, {.tag = "metric of a step"})[0] / world.size();
  for (optim::Schedule* schedule : schedules) metric ? schedule->step(*metric) : schedule->step();
}

void EngineBase::Impl::call_participants() {
  const auto maximum = [this](const Tensor& numbers) {
    const dist::CollectiveOptions settings{.op = dist::ReduceOp::max, .tag = "maxima for reports of a step"};
    if (group->size() > 1) group->all_reduce(numbers, settings);
    if (plan.tp > 1) (own_mesh ? own_mesh->tp() : part->mesh->tp()).all_reduce(numbers, settings);
  };
  for (const Participating& one : participants) one.participant->after_step(maximum);
}

void EngineBase::Impl::report(const Step& step) {
  ++global_steps;
  global_samples += config.managed_gradient_accumulation
                        ? *config.train_batch_size
                        : step.backwards * replicas() * *config.train_micro_batch_size_per_gpu;
  group->control().set_step(uint64_t(global_steps + 1));
  times.step = milliseconds_since(step.start);
  const zero::Waited before = std::exchange(waited_before, zero::waited);
  times.read = 1e3 * (zero::waited.read - before.read);
  times.write = 1e3 * (zero::waited.write - before.write);
  times.gather = 1e3 * (zero::waited.gather - before.gather);
  times.wait = times.read + times.write + times.gather + times.reduce;
  const zero::StepReport& done = step.done;
  if (done.skipped) {
    say(str("step ", global_steps, " is skipped: the gradient of ", done.first_nonfinite,
            " is not finite, first at rank ", done.rank,
            scaler ? str("; the loss scale was ", step.scale_before, " and is now ", loss_scale())
                   : "; lower the learning rate if this goes on"));
  }
  const std::vector<double> rate = learning_rates();
  StepValues found{
      .values = {{"train_loss", loss}, {"lr", rate[0]}}, .samples = global_samples, .milliseconds = times.step};
  if (scaler) found.values.emplace_back("loss_scale", loss_scale());
  if (config.wall_clock_breakdown) {
    for (const auto& [key, name, of] : breakdown_names) found.values.emplace_back(key, times.*of);
  }

  for (const auto& [key, name, of] : breakdown_names) printed_times.*of += times.*of;
  ++timed_steps;
  const int64_t every = config.steps_per_print.value_or(0);
  const bool print = every > 0 && global_steps % every == 0;
  if (print) {
    say(str("step=", global_steps, ", skipped=", skipped_steps, ", lr=[", fmt::format("{:g}", fmt::join(rate, ", ")),
            "], loss=", loss, ", grad_norm=", norm, scaler ? str(", loss_scale=", loss_scale()) : std::string()));
    if (config.memory_breakdown) say(memory_text());
  }
  if (checkpoints && config.activation_checkpointing.profile && (print || every == 0)) {
    say(checkpoints->report());
    checkpoints->reset_times();
  }
  if (config.wall_clock_breakdown && (print || every == 0)) {
    std::string line = "time (ms)";
    for (const auto& [key, name, of] : breakdown_names)
      line += fmt::format(" | {}: {:.2f}", name, printed_times.*of / double(timed_steps));
    say(line);
    printed_times = {};
    timed_steps = 0;
  }
  for (const Participating& one : participants)
    if (const std::string text = one.participant->report(found); !text.empty()) say(text);
  times = {};
}

/// Returns a table of the bytes in use for parameters, gradients and so on, next to the formula of ZeRO's paper.
std::string EngineBase::Impl::memory_text() {
  const int64_t psi = model.parameter_count();
  std::set<std::string> kinds;  // kinds of optimizer state
  if (zero)
    for (const zero::StatePiece& piece : zero->state())
      if (piece.name.starts_with("optimizer.")) kinds.insert(piece.name.substr(10, piece.name.find('.', 10) - 10));
  const zero::ModelState formula =
      zero::model_state(stage(), double(psi), group->size(), double(size_of(model.parameters().at(0).dtype())),
                        zero ? 4.0 * double(kinds.size()) : exchange->bytes_per_parameter());
  const MemoryReport ledger = memory_report(model.parameters().at(0).device());
  std::string text = str("memory of this process after step ", global_steps, ", bytes; the formula is for one rank of ",
                         group->size(), " at stage ", stage(), " with ", psi, " parameters\n");
  const auto line = [&](const std::string& name, const std::string& held, const std::string& peak,
                        const std::string& by_formula) {
    text += fmt::format("  {:<14}{:>18}{:>18}{:>18}\n", name, held, peak, by_formula);
  };
  line("", "held", "peak", "formula");
  for (int c = 0; c < memory_categories; ++c) {
    const MemoryUse& use = ledger.category[size_t(c)];
    const Memory category = Memory(c);
    const double expected = category == Memory::parameter   ? formula.parameters
                            : category == Memory::gradient  ? formula.gradients
                            : category == Memory::optimizer ? formula.optimizer
                                                            : -1;
    line(std::string(name_of(category)), std::to_string(use.current), std::to_string(use.peak),
         expected < 0 ? "" : fmt::format("{:.0f}", expected));
  }
  line("total", std::to_string(ledger.total.current), std::to_string(ledger.total.peak),
       fmt::format("{:.0f}", formula.total()));
  text.pop_back();
  return text;
}

}  // namespace lockstep::engine
