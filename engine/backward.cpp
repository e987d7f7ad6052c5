// Forward and backward of a model of which this rank holds every layer (no pipeline or tensor parallelism).
//
//   forward    the first forward of a micro-batch seeds the random numbers by step and micro-batch
//   backward   loss x factor ─▶ tape ─▶ first gradient: the engine decides whether to sum on this rank only (ZeRO
//                                        stages 0 and 1, before the last micro-batch) or over ranks
//
// The engine has hooks on the parameters' gradients, so it does not matter who runs the backward:
// engine.backward(loss), or loss.backward() of a loss that several engines contribute to.
#include "autograd/ops.h"
#include "base/at_end.h"
#include "engine/impl.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/random.h"
#include "trace/trace.h"

namespace lockstep::engine {

void EngineBase::Impl::watch() {
  if (part) return;  // run_schedule() runs all forwards and backwards: no hooks are needed
  for (const Variable& p : model.parameters()) {
    if (!p.requires_grad()) continue;
    Variable handle = p;
    gradient_hooks.emplace_back(p, handle.on_grad_complete([this](Tensor&) {
      if (!in_pass) gradient_arrives();
    }));
  }
  module_hooks.push_back(model.before_forward([this](nn::Module&, const std::vector<Variable>&) { before_forward(); }));
  module_hooks.push_back(model.after_forward_all([this](auto&&...) { after_forward(); }, false));
  model_calls = model.calls();
}

int64_t EngineBase::Impl::micro_batch(int64_t ahead) const {
  const int64_t done = int64_t(micros.size()) + ahead;
  return numbering().number(group->rank() / context_ranks,
                            config.managed_gradient_accumulation ? done % accumulation : done);
}

/// Warns if a loop over a DataLoader has ended in the middle of a step. The next loop then completes the step.
void EngineBase::Impl::notice_end_of_loop() {
  data::LoopDepth& depth = data::loop_depth();
  if (micros.empty()) loops = depth.least = depth.now;
  if (said_unfilled || is_seeded || depth.least >= loops) return;
  said_unfilled = true;
  say(str("warning: a loop over a DataLoader ended with ", micros.size(), " of the ", accumulation,
          " micro-batches of a step: the next loop completes it, and micro-batches left after the last loop train "
          "nothing; use a multiple of gradient_accumulation_steps batches per loop"));
}

void EngineBase::Impl::before_forward() {
  if (!in_pass && !closed && config.managed_gradient_accumulation) notice_end_of_loop();
  if (in_pass || closed || !model.is_training() || !NoGrad::grad_enabled()) return;
  if (forwards++ == 0 && !is_seeded) begin_random(micro_batch());
  if (forwards == 1)
    for (const Participating& one : participants) one.participant->before_forward(global_steps, int64_t(micros.size()));
  timing_forward = true;
  forward_start = steady_seconds();
  forward_traced = trace::now();
}

void EngineBase::Impl::after_forward() {
  if (!timing_forward) return;
  timing_forward = false;
  const double spent = milliseconds_since(forward_start);
  times.forward += spent;
  // In train_batch() `is_seeded` is true: there, one trace event covers the forward and the loss. In other loops,
  // record an event for the forward alone here.
  if (const int64_t number = is_seeded || !trace::on() ? -1 : micro_batch(); number >= 0)
    trace::record(str("forward ", number), trace::Category::forward, forward_traced, trace::now(),
                  {{"micro_batch", number}});
  for (const Participating& one : participants) one.participant->after(parallel::Do::forward, spent);
}

/// Lets the random stream of a micro-batch continue with call number `calls`: the calls before it were made to load the
/// data. Ranks that share a micro-batch hold different tokens of it, so each gets a random stream of its own.
void EngineBase::Impl::begin_random(int64_t micro_batch, uint64_t calls) {
  set_random_step(uint64_t(global_steps), uint64_t(micro_batch * context_ranks + group->rank() % context_ranks), calls);
}

/// Runs at the first gradient of a backward.
void EngineBase::Impl::gradient_arrives() {
  if (closed) return;
  LOCKSTEP_CHECK(!failed,
                 "[engine] expected zero_grad() after a backward that ended with an exception, got another backward");
  const bool needs_scale = own_factor() != 1;
  // A backward without the loss scale, or a second backward, has already written gradients that cannot be used.
  if ((needs_scale && !scaled) || (config.managed_gradient_accumulation && pending > 0)) failed = true;
  LOCKSTEP_CHECK(!needs_scale || scaled,
                 "[engine] expected a loss that was multiplied by the loss scale, got a plain loss.backward(); call "
                 "engine.backward(loss), or "
                 "engine.scale(loss).backward() (several engines: scale(loss, {&a, &b}))");
  LOCKSTEP_CHECK(!failed,
                 "[engine] expected step() after every backward, got a second backward; add the losses of a "
                 "micro-batch up, or set managed_gradient_accumulation to false");
  in_pass = true;
  if (!scaled) backward_start = steady_seconds();
  if (zero && config.managed_gradient_accumulation && zero->stage() < 2 && !is_boundary()) local.emplace(*zero);
  const auto ended = [this] {
    // Take the time now: ZeRO's own callback comes next, and waits for reductions.
    const double spent = milliseconds_since(backward_start);
    times.inner += spent;
    times.backward += spent;
    local.reset();
    if (exchange) exchange->add();
    if (!scaled) set_factor(1);
    in_pass = scaled = false;
    ++pending;
    micros.push_back({});
  };
  after_backward(ended, [this] {
    local.reset();
    in_pass = scaled = false;
    failed = true;
  });
}

double EngineBase::Impl::own_factor() const {
  // With a loss scale or prescale_gradients, the loss is divided by `ahead`, the number of micro-batches of a step on
  // all ranks, because a sum of so many scaled gradients could overflow f16. The loss is also divided by
  // gradient_predivide_factor; step() multiplies the gradients by that factor again.
  const double ahead = scaler || config.prescale_gradients ? double(accumulation * group->size()) : 1;
  if (grad_scaler) return grad_scaler->scale_value() / config.gradient_predivide_factor;
  return loss_scale() / ahead / config.gradient_predivide_factor;
}

void EngineBase::Impl::set_factor(double wanted) {
  LOCKSTEP_CHECK(!factor || *factor == wanted,
                 "[engine] expected all losses of a step to be multiplied by one factor, got ", wanted, " after ",
                 factor.value_or(0), "; scale all micro-batches of a step in the same way");
  factor = wanted;
}

Variable times_factor(const Variable& loss, double factor) {
  return mul_scalar(size_of(loss.dtype()) < 4 ? loss.to(f32) : loss, factor);
}
Variable times_factor(const Variable& loss, const Tensor& factor) {
  const Variable wide = size_of(loss.dtype()) < 4 ? loss.to(f32) : loss;
  return mul(wide, factor.to(wide.dtype()));
}
Variable EngineBase::Impl::scaled_by_factor(const Variable& loss) const {
  return now.graph ? times_factor(loss, now.graph->factor) : times_factor(loss, *factor);
}

void EngineBase::Impl::check_backward(int64_t tokens_) const {
  check_open("backward");
  check_unsplit("backward");
  LOCKSTEP_CHECK(!config.managed_gradient_accumulation || pending == 0,
                 "[backward] expected step() after every backward(), got a second backward(); add the losses of a "
                 "micro-batch up, or set managed_gradient_accumulation to false");
  LOCKSTEP_CHECK(micros.empty() || (micros[0].tokens < 0) == (tokens_ < 0),
                 "[backward] expected all micro-batches of a step with a number of tokens, or all without; got both; "
                 "pass `tokens` to every backward() of a step, or to none");
}

void EngineBase::Impl::backward(const Variable& loss_, int64_t tokens_) {
  LOCKSTEP_CHECK(loss_.defined() && loss_.numel() == 1, "[backward] expected a loss of one element, got ",
                 loss_.defined() ? str(loss_.shape()) + "; take its mean" : "none; pass the loss of the forward pass");
  check_backward(tokens_);
  set_factor(own_factor());
  pass(*factor == 1 && !now.graph ? loss_ : scaled_by_factor(loss_), loss_.tensor(), tokens_);
}

/// Runs the backward of a micro-batch from `root`, which is its loss `value` times the factor of the step.
void EngineBase::Impl::pass(const Variable& root, const Tensor& value, int64_t tokens_) {
  const int before = pending;
  const double inner = times.inner;
  scaled = true;
  backward_start = steady_seconds();
  const AtEnd ends([this] { scaled = false; });
  root.backward();
  LOCKSTEP_CHECK(
      pending == before + 1,
      "[backward] expected a loss that depends on the model's parameters, got one that does not: no gradient came; "
      "compute the loss from the model's output");
  micros.back() = {value, tokens_};
  const double spent = milliseconds_since(backward_start), waited = spent - (times.inner - inner);
  times.backward += waited;
  times.reduce += waited;
  for (const Participating& one : participants) one.participant->after(parallel::Do::backward, spent);
}

void EngineBase::Impl::forget() {
  model.zero_grad();
  if (zero) zero->zero_grad();
  else exchange->discard();
  micros.clear();
  factor.reset();
  pending = forwards = 0;
  is_seeded = false;
  micro_steps -= config.managed_gradient_accumulation ? micro_steps % accumulation : 0;
  failed = scaled = timing_forward = false;
}

// --- the interface ---

void EngineBase::backward(const Variable& loss) { impl_->backward(loss, -1); }
void EngineBase::backward(const Variable& loss_sum, int64_t tokens) {
  LOCKSTEP_CHECK(tokens >= 0, "[backward] expected a number of tokens >= 0, got ", tokens);
  impl_->backward(loss_sum, tokens);
}

Variable EngineBase::scale(const Variable& loss) { return engine::scale(loss, {this}); }
Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines) {
  LOCKSTEP_CHECK(!engines.empty(), "[scale] expected at least one engine, got none");
  LOCKSTEP_CHECK(loss.defined() && loss.numel() == 1, "[scale] expected a loss of one element, got ",
                 loss.defined() ? str(loss.shape()) + "; take its mean" : "none; pass the loss of the forward pass");
  double least = std::numeric_limits<double>::infinity();
  for (const EngineBase* engine : engines) {
    engine->impl_->check_open("scale");
    engine->impl_->check_unsplit("scale");
    least = std::min(least, engine->impl_->own_factor());
  }
  for (EngineBase* engine : engines) {
    engine->impl_->set_factor(least);
    engine->impl_->scaled = true;
    engine->impl_->backward_start = steady_seconds();
  }
  return times_factor(loss, least);
}

void EngineBase::step(std::optional<double> metric) {
  impl_->check_unsplit("step");
  impl_->step(metric);
}
void EngineBase::enter_no_sync() {
  impl_->check_open("no_sync");
  if (impl_->zero && !impl_->caller_local) impl_->caller_local.emplace(*impl_->zero);
  ++impl_->no_sync_depth;
}
void EngineBase::leave_no_sync() {
  if (--impl_->no_sync_depth == 0) impl_->caller_local.reset();
}

/// Runs the blocks of the model as activation checkpoints.
void EngineBase::Impl::wrap_blocks() {
  const ActivationCheckpointingConfig& a = config.activation_checkpointing;
  checkpoints.emplace(parallel::CheckpointOptions{.partition_activations = a.partition_activations,
                                                  .cpu_checkpointing = a.cpu_checkpointing,
                                                  .contiguous_memory_optimization = a.contiguous_memory_optimization,
                                                  .number_checkpoints = a.number_checkpoints.value_or(0),
                                                  .synchronize_checkpoint_boundary = a.synchronize_checkpoint_boundary,
                                                  .profile = a.profile,
                                                  .beside = moe::aux_losses});
  try {
    checkpoints->wrap_blocks(model);
  } catch (const Error& error) {  // DeepSpeed's files may have the section for no model in particular
    if (a.enabled) throw;
    say(str("note: activation_checkpointing has no effect: ", error.what()));
    return checkpoints.reset();
  }
  for (const std::string& note : checkpoints->notes()) say("note: activation_checkpointing: " + note);
}

EngineBase::Forward::Forward(EngineBase& engine) : engine_(engine) {
  if (const auto dtype = engine.impl_->unsplit.autocast) precise_.emplace(*dtype);
  engine.impl_->check_open("forward");
  engine.impl_->check_unsplit("forward");
}
EngineBase::Forward::~Forward() { engine_.impl_->after_forward(); }
Tensor EngineBase::Forward::cast(const Tensor& input) {
  saw_other_dtype_ |= engine_.impl_->is_other_dtype(input);
  return engine_.impl_->cast(input);
}
Variable EngineBase::Forward::cast(const Variable& input) {
  saw_other_dtype_ |= engine_.impl_->is_other_dtype(input);
  return engine_.impl_->cast(input);
}
void EngineBase::Forward::explain(const Error& error) const {
  const Impl& m = *engine_.impl_;
  const char* const block = m.config.fp16.enabled ? "fp16" : "bf16";
  if (!saw_other_dtype_ || m.auto_cast) throw;
  fail(str(error.what(), "; the model is ", m.dtype, " (", block, ".enabled), and an input was not: set ", block,
           ".auto_cast to true, or convert inputs with .to(", m.dtype, "). The outputs are ", m.dtype,
           " too: for targets of another dtype, give the loss outputs.to(f32)"));
}

}  // namespace lockstep::engine
