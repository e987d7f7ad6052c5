// train_batch() and evaluation. If this rank holds every layer, the micro-batches run one by one. If the model is split
// by pipeline or tensor parallelism, this rank runs its part of a pipeline schedule:
//
//   train_batch ─▶ schedule: sums over this replica's micro-batches ─▶ ZeRO among the replicas of this part
//               ─▶ overflow check and norm, combined over all stages and shards (part.cpp)
//               ─▶ clip, update ─▶ next learning rate
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "base/at_end.h"
#include "engine/impl.h"
#include "parallel/agreement.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"
#include "zero/stage.h"

namespace lockstep::engine {

using parallel::StepAction, parallel::Do;

pipeline::Data EngineBase::Impl::with_cast(const pipeline::Data& data) const {
  if (!auto_cast) return data;
  return [this, &data](int64_t micro_batch) {
    auto sample = data(micro_batch);
    if (sample)
      for (Tensor& input : sample->inputs) input = cast(input);
    return sample;
  };
}

// --- this rank holds every layer of the model ---

/// Loads a micro-batch with its own random stream. `calls` receives the number of calls of the random generator.
pipeline::Sample EngineBase::Impl::sample(const pipeline::Data& data, int64_t micro_batch, uint64_t* calls) const {
  const RandomScope here;
  set_random_step(uint64_t(global_steps), uint64_t(micro_batch));
  std::optional<pipeline::Sample> next = data(micro_batch);
  LOCKSTEP_CHECK(next, "[train_batch] the data ended before micro-batch ", micro_batch, " of step ", global_steps,
                 "; give data for every micro-batch, or train for fewer steps");
  if (calls) *calls = random_state().call;
  return *next;
}

MicroBatch EngineBase::Impl::draw(const pipeline::Data& data, int64_t number) const {
  MicroBatch one{.number = number};
  one.sample = sample(data, number, &one.calls);
  if (unsplit.tokens) one.tokens = unsplit.tokens(one.sample.targets);
  return one;
}

/// Runs the model on a micro-batch, and returns its loss plus the losses that modules add themselves. If `measure` is
/// not null, returns what `measure` computes instead. of_none: true if the micro-batch has no targets: its loss is 0.
Variable EngineBase::Impl::mean_loss(const pipeline::Sample& sample, const pipeline::Loss* measure, bool of_none) {
  std::optional<Autocast> precise;
  if (unsplit.autocast) precise.emplace(*unsplit.autocast);
  const std::vector<Tensor>& inputs = sample.inputs;
  LOCKSTEP_CHECK(inputs.size() == 1 || !unsplit.forward, "[train_batch] expected one input for `forward`, got ",
                 inputs.size(), "; leave `forward` out, so that the model gets all");
  if (!measure && !unsplit.loss_fn) {
    const nn::LayerList list = model.layers();
    const auto of = list.loss;
    LOCKSTEP_CHECK(of, "[train_batch] expected a loss_fn: ", model.kind(),
                   " names no loss in layers(); give PipelineModule::loss_fn");
    unsplit.loss_fn = [of](const pipeline::Values& out, const std::vector<Tensor>& targets) {
      return of(out.at(0), targets);
    };
    if (!unsplit.forward) loss_of_input = list.loss_of_input;
  }
  Variable value;
  if (loss_of_input && inputs.size() == 1 && !measure && !of_none) value = loss_of_input(inputs[0], sample.targets);
  if (!value.defined()) {
    const Variable out = unsplit.forward      ? unsplit.forward(inputs[0])
                         : inputs.size() == 1 ? model.call(inputs[0])
                                              : model.call_many({inputs.begin(), inputs.end()});
    // The mean over no targets would be NaN.
    value = of_none ? mul_scalar(sum(out.to(f32)), 0) : (measure ? *measure : unsplit.loss_fn)({out}, sample.targets);
  }
  const Variable own = measure || !NoGrad::grad_enabled() ? Variable() : nn::own_loss(model);
  return own.defined() ? add(value, own.to(value.dtype())) : value;
}

/// The loss of a micro-batch, summed over its `tokens` targets. If their number is unknown (-1), the mean loss.
Variable EngineBase::Impl::run(const pipeline::Sample& sample, const pipeline::Loss* measure, int64_t tokens) {
  const Variable mean = mean_loss(sample, measure, tokens == 0);
  if (tokens <= 0) return mean;
  return now.graph ? times_factor(mean, now.graph->tokens[micros.size()]) : times_factor(mean, double(tokens));
}

/// Loads the data of the coming step's micro-batches in advance, for a step that runs as a graph. Loads fewer of them
/// if the next call of `data` would overwrite data already loaded. For a pipeline stage that needs no data, the
/// result has the micro-batches' indices, but no data.
std::vector<MicroBatch> EngineBase::Impl::draw_ahead(const pipeline::Data& data) const {
  std::vector<MicroBatch> ahead;
  if (!is_between_steps()) return ahead;
  try {
    do {
      const int64_t number = micro_batch(int64_t(ahead.size()));
      ahead.push_back(!part || part->has_data ? draw(data, number) : MicroBatch{.number = number});
    } while (int64_t(ahead.size()) < accumulation && ahead.back().keep());
  } catch (const std::exception& error) {
    // Other pipeline stages wait for this rank's data: report the error to all ranks, so that they end too.
    if (part && world.size() > 1) parallel::fail_everywhere(world, error.what());
    throw;
  }
  return ahead;
}

/// Runs the list of actions of a step (parallel/step.h), except those of micro-batches that backward() has already run.
/// With pipeline stages or tensor parallelism, run_schedule() runs all micro-batches first, unless a graph has replayed
/// them.
void EngineBase::Impl::train(const pipeline::Data& data, std::vector<MicroBatch> ahead, parallel::Mode mode) {
  now.data = &data;
  now.ahead.assign(ahead.begin(), ahead.end());
  std::vector<StepAction> list;
  if (part) {
    if (mode != parallel::Mode::replay) run_schedule(data, ahead);
    parallel::add_tail(list, true);
  } else {
    list = parallel::step_of(numbering(), group->rank() / context_ranks);
    list.erase(list.begin(), list.begin() + 3 * (micro_steps % accumulation));
  }
  parallel::run(
      list, [this](const StepAction& a) { act(a); }, mode);
}

void EngineBase::Impl::act(const StepAction& a) {
  if (now.done.skipped && needs_finite(a.what)) return;
  switch (a.what) {
    case Do::draw:
      now.one = now.ahead.empty() ? draw(*now.data, a.micro_batch) : std::move(now.ahead.front());
      if (!now.ahead.empty()) now.ahead.pop_front();
      begin_random(a.micro_batch, now.one.calls);  // the forward continues the random stream where loading ended
      is_seeded = true;
      break;
    case Do::forward: {
      const trace::Scope forward("forward", trace::Category::forward, {{"micro_batch", a.micro_batch}}, a.micro_batch);
      now.loss = run(now.one.sample, nullptr, now.one.tokens);
      break;
    }
    case Do::backward:
      backward(std::exchange(now.loss, {}), now.one.tokens);
      end_micro_batch();
      break;
    case Do::losses:
      LOCKSTEP_CHECK(!wants_metric() || now.metric, needs_metric);
      if (!now.graph) now.start = steady_seconds();
      now.graph ? guarded([&] { gather_losses(); }) : gather_losses();
      break;
    case Do::check: begin_update(); [[fallthrough]];
    case Do::norm:
    case Do::update:
    case Do::gather:
    case Do::scale:
      guarded([&] {
        if (now.graph && a.what == Do::scale) now.done = zero->after_replay(now.options, now.graph->update);
        else if (zero) zero->act(a.what, now.options, now.done);
        else if (a.what == Do::update) now.done = exchange->step(now.options);
        else if (a.what == Do::scale)
          zero::adapt(now.done, now.options.scaler, nonfinite(), "[engine] ", exchange->steps() + 1);
      });
      break;
    case Do::rates: end_update(); break;
    case Do::report: report(std::exchange(now, {})); break;
    default: break;
  }
}

void EngineBase::Impl::check_step() const {
  LOCKSTEP_CHECK(no_sync_depth == 0,
                 "[step] expected to be called outside of no_sync(): the last micro-batch's backward must reduce; end "
                 "no_sync() before that backward");
  LOCKSTEP_CHECK(pending > 0, "[step] expected a backward() since the last step(), got none; call backward()");
}

void EngineBase::Impl::end_micro_batch() {
  check_step();
  is_seeded = false;
  pending = forwards = 0;
  micro_steps += part ? accumulation : 1;
}

std::vector<double> EngineBase::Impl::eval_unsplit(const pipeline::Data& data, int micro_batches,
                                                   const pipeline::Loss* measure, int values) {
  const RandomScope program;
  const NoGrad no_grad;
  const AtEnd trains([this, before = model.is_training()] { model.train(before); });
  model.eval();
  const auto first = int32_t(group->rank() / context_ranks * micro_batches);
  std::vector<double> all(size_t(micro_batches) * size_t(replicas()) * size_t(values));
  std::vector<StepAction> list;
  for (int32_t i = first; i < first + micro_batches; ++i)
    list.push_back({Do::draw, i}), list.push_back({Do::forward, i});
  parallel::add_tail(list, false);
  pipeline::Sample one;
  parallel::run(list, [&](const StepAction& a) {
    if (a.what == Do::draw) one = sample(data, a.micro_batch);
    // Each value is nonzero on one rank only, so the sum is exact. With cp, it has a term of each of the cp ranks.
    if (a.what == Do::losses) all = sum_of_ranks(all, "evaluation");
    if (a.what != Do::forward) return;
    Variable loss = run(one, measure);
    if (!measure && values == 2 && unsplit.tokens) loss = sum_and_tokens(loss, unsplit.tokens(one.targets));
    const Tensor found = loss.tensor();
    LOCKSTEP_CHECK(found.numel() == values, "[eval_batch] expected `measure` to return a tensor of `values` numbers, ",
                   values, ", got shape ", found.shape(), "; pass another `values`");
    const std::vector<double> numbers = found.to_vector<double>();
    for (size_t v = 0; v < numbers.size(); ++v)
      all[size_t(a.micro_batch) * numbers.size() + v] = numbers[v] / context_ranks;
  });
  return all;
}

// --- the model is split by pipeline or tensor parallelism ---

/// Runs forward and backward of all micro-batches, and sums their gradients. ZeRO then reduces the sums over replicas.
void EngineBase::Impl::run_schedule(const pipeline::Data& data, const std::vector<MicroBatch>& ahead) {
  const double start = steady_seconds();
  set_factor(own_factor());
  std::function<Variable(const Variable&)> scale;
  if (now.graph || *factor != 1) scale = [this](const Variable& loss) { return scaled_by_factor(loss); };
  pipeline::PipelineEngine& stages = *part->engine;
  stages.set_step(uint64_t(global_steps));
  const int64_t first = micro_batch();
  std::vector<Tensor> losses;
  try {
    losses = stages.forward_backward(
        [&](int64_t number) -> std::optional<pipeline::Sample> {
          if (number - first >= int64_t(ahead.size())) return data(number);
          const MicroBatch& one = ahead[size_t(number - first)];
          begin_random(number, one.calls);  // the random stream after the `calls` calls that loading made
          return one.sample;
        },
        scale);
  } catch (...) {
    factor.reset();
    throw;
  }
  const double summed = milliseconds_since(start);
  part->complete_gradients();
  guarded([&] { zero->add(); });
  times.backward += milliseconds_since(start);
  times.reduce += milliseconds_since(start) - summed;
  for (Tensor& one : losses) micros.push_back({std::move(one)});
  pending = 1;
  end_micro_batch();
}

// --- the interface ---

Variable sum_and_tokens(const Variable& mean, int64_t tokens) {
  Variable loss = mean.to(f32).reshape({1});
  const Tensor count = full({1}, double(tokens), {.dtype = f32, .device = loss.device()});
  if (tokens == 0) loss = count;  // the mean over no targets would be NaN
  if (tokens > 0) loss = mul_scalar(loss, double(tokens));
  return cat({loss, Variable(count)}, 0);
}

double EngineBase::train_batch(const pipeline::Data& data, std::optional<double> metric) {
  Impl& m = *impl_;
  m.check_open("train_batch");
  LOCKSTEP_CHECK(data, "[train_batch] expected a function that returns micro-batches, got none");
  LOCKSTEP_CHECK(m.model.is_training(), "[train_batch] expected the model in training mode, got eval(); call train()");
  LOCKSTEP_CHECK(m.config.managed_gradient_accumulation, "[train_batch] ", m.config.origin,
                 ": managed_gradient_accumulation: false lets the caller decide when a step ends, but train_batch() "
                 "runs a whole step; leave it out");
  const pipeline::Data cast = m.with_cast(data);
  const RandomScope program;
  std::vector<MicroBatch> ahead;
  if (m.graphs.are_wanted()) {
    ahead = m.draw_ahead(cast);
    if (m.graphs.run(ahead, metric)) return m.loss;
  }
  m.now = {.metric = metric};
  m.train(cast, std::move(ahead));
  return m.loss;
}

double EngineBase::train_batch(std::optional<double> metric) {
  Impl& m = *impl_;
  m.check_open("train_batch");
  LOCKSTEP_CHECK(m.loader, "[train_batch] expected data, or an engine with training_data, got neither; pass one");
  LOCKSTEP_CHECK(m.plan.cp == 1, "[train_batch] training_data gives whole sequences, and ", to_string(m.plan),
                 " needs each rank's part of the sequences; call it with data that sequence::slice() has cut");
  if (!m.batches) {
    m.loader->load_state(m.loader->state());  // continues a loop that was left early
    m.batches.emplace(*m.loader);
    m.to_device.emplace(m.model.parameters().at(0).device());
  }
  return train_batch(
      [&m](int64_t) {
        const data::Example one = (*m.to_device)(m.batches->next());
        return pipeline::Sample{one.inputs(), one.targets()};
      },
      metric);
}

double EngineBase::eval_batch(const pipeline::Data& data, int micro_batches) {
  LOCKSTEP_CHECK(micro_batches >= 0, "[eval_batch] expected 0 micro-batches or more, got ", micro_batches);
  const int values = impl_->unsplit.tokens ? 2 : 1;  // a micro-batch gives {sum of losses, tokens}, or its mean loss
  const std::vector<double> found =
      eval_batches(data, micro_batches > 0 ? micro_batches : int(impl_->accumulation), {}, values);
  double sum = 0, weight = 0;
  for (size_t i = 0; i < found.size(); i += size_t(values)) {
    sum += found[i];
    weight += values == 2 ? std::abs(found[i + 1]) : 1;
  }
  return sum / weight;
}

void EngineBase::sync_buffers() {
  if (group().size() == 1) return;
  for (const auto& buffer : module().named_buffers()) {
    const Tensor dense = buffer.tensor.contiguous();
    group().broadcast(dense, 0, {.tag = "buffer " + buffer.name});
    if (dense.storage() != buffer.tensor.storage()) buffer.tensor.copy_(dense);
  }
}

std::vector<double> EngineBase::eval_batches(const pipeline::Data& data, int micro_batches,
                                             const pipeline::Loss& measure, int values) {
  Impl& m = *impl_;
  m.check_open("eval_batches");
  LOCKSTEP_CHECK(data, "[eval_batches] expected a function that returns micro-batches, got none");
  LOCKSTEP_CHECK(micro_batches > 0, "[eval_batches] expected 1 micro-batch or more, got ", micro_batches);
  const trace::Scope scope("eval_batches", trace::Category::evaluation);
  const pipeline::Data cast = m.with_cast(data);
  sync_buffers();
  return m.part ? m.part->engine->eval_batch(cast, micro_batches, measure, values)
                : m.eval_unsplit(cast, micro_batches, measure ? &measure : nullptr, values);
}

}  // namespace lockstep::engine
