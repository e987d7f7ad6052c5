// The public interface; all work is done by the stage, see stage.h.
#include "zero/zero.h"

#include <algorithm>
#include <exception>

#include "zero/gather.h"

namespace lockstep::zero {

Zero::Zero(nn::Module& module, optim::Optimizer& optimizer, const Options& options, dist::ProcessGroup* group)
    : Zero(module, std::vector<optim::Optimizer*>{&optimizer}, options, group) {}
Zero::Zero(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const Options& options,
           dist::ProcessGroup* group)
    : impl_(make_stage(module, std::move(optimizers), options, group ? *group : dist::world())) {}
Zero::~Zero() = default;

std::unique_ptr<Stage> make_stage(nn::Module& module, std::vector<optim::Optimizer*> optimizers, const ZeroOptions& o,
                                  dist::ProcessGroup& group) {
  std::unique_ptr<Stage> stage;
  switch (o.stage) {
    case 0: stage = std::make_unique<Stage>(module, std::move(optimizers), o, group); break;
    case 1: stage = std::make_unique<Stage1>(module, std::move(optimizers), o, group); break;
    case 2: stage = std::make_unique<Stage2>(module, std::move(optimizers), o, group); break;
    case 3: stage = std::make_unique<Stage3>(module, std::move(optimizers), o, group); break;
    default: fail(str("[zero] expected stage 0, 1, 2 or 3, got ", o.stage));
  }
  stage->build();
  return stage;
}

int Zero::stage() const { return impl_->options.stage; }
dist::ProcessGroup& Zero::group() const { return impl_->group; }

int64_t Zero::micro_batch(int64_t i, int64_t accumulation) const {
  LOCKSTEP_CHECK(i >= 0 && i < accumulation, "[zero] expected a micro-batch from 0 to ", accumulation - 1, ", got ", i);
  return stage() < 2 ? group().rank() * accumulation + i : i * group().size() + group().rank();
}

void Zero::enter_no_sync() { impl_->enter_no_sync(); }
void Zero::leave_no_sync() { impl_->leave_no_sync(); }
void Zero::add() { impl_->add(); }

StepReport Zero::step(const StepOptions& options) {
  using parallel::Do;
  StepReport report;
  for (const Do what : {Do::check, Do::norm, Do::update, Do::gather, Do::scale})
    if (!report.skipped || !needs_finite(what)) impl_->act(what, options, report);
  return report;
}
void Zero::act(parallel::Do what, const StepOptions& options, StepReport& report) { impl_->act(what, options, report); }
void Zero::before_replay(const StepOptions& options, const Captured& of) {
  impl_->before_replay(options, of ? of : captured());
}
StepReport Zero::after_replay(const StepOptions& options, const Captured& of) {
  return impl_->after_replay(options, of ? of : captured());
}
Zero::Captured Zero::captured() const { return impl_->captured(); }
void Zero::release() {
  if (impl_->gathers()) impl_->gathers()->release_all();
}
int Zero::hooks_on(const nn::Module& m) const { return impl_->gathers() ? impl_->gathers()->hooks_on(m) : 0; }
bool Zero::can_replay(const StepOptions& options) const { return std::abs(impl_->scale_of(options)) <= 1; }
void Zero::zero_grad() { impl_->forget(); }
void Zero::register_external(nn::Module& module, const Variable& parameter) {
  Gather* const gathers = impl_->gathers();
  if (!gathers) return;
  for (auto& [name, child] : impl_->module.named_modules())
    if (child == &module) return gathers->need(module, {parameter});
  fail(str("[register_external] expected a module inside ", impl_->module.kind(), ", got a ", module.kind(),
           " that is not; give one of its submodules"));
}

// --- gathered ---

namespace {

/// The units that contain these parameters, each once.
std::vector<size_t> units_of(const Stage& stage, const std::vector<size_t>& parameters) {
  std::vector<size_t> units;
  for (const size_t i : parameters)
    if (stage.parameters[i].unit != SIZE_MAX) units.push_back(stage.parameters[i].unit);
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

}  // namespace

Zero::Gathered Zero::gathered(int modifier_rank) { return gathered(impl_->module.parameters(), modifier_rank); }

Zero::Gathered::Gathered(Zero& zero, const std::vector<Variable>& parameters, int modifier_rank)
    : stage_(*zero.impl_), modifier_rank_(modifier_rank), exceptions_(std::uncaught_exceptions()) {
  Stage& stage = stage_;
  LOCKSTEP_CHECK(modifier_rank >= -1 && modifier_rank < stage.group.size(),
                 "[gathered] expected a modifier rank from 0 to ", stage.group.size() - 1, ", or -1 for none, got ",
                 modifier_rank);
  for (const Variable& v : parameters) parameters_.push_back(stage.index_of(v));
  for (const size_t u : units_of(stage, parameters_))
    if (Gather* const gathers = stage.gathers()) gathers->pin(u);
  for (const size_t i : parameters_) versions_.push_back(stage.parameters[i].variable.tensor().storage()->version());
}

Zero::Gathered::~Gathered() noexcept(false) {
  const AtEnd unpins([&] {
    for (const size_t u : units_of(stage_, parameters_))
      if (Gather* const gathers = stage_.gathers()) gathers->unpin(u);
  });
  const bool failed = std::uncaught_exceptions() > exceptions_;
  if (!failed && modifier_rank_ >= 0) stage_.take_from(modifier_rank_, parameters_);
  const Parameter* changed = nullptr;
  for (size_t k = 0; k < parameters_.size() && !failed && modifier_rank_ < 0; ++k) {
    const Parameter& p = stage_.parameters[parameters_[k]];
    if (p.variable.tensor().storage()->version() != versions_[k]) changed = &p;
  }
  LOCKSTEP_CHECK(!changed, "[gathered] ", changed->name, " was changed (by '",
                 changed->variable.tensor().storage()->last_writer(),
                 "'), but the scope has no modifier rank: other ranks would not see it. Name the rank that changes it: "
                 "gathered(parameters, 0)");
}

std::vector<PlannedUnit> Zero::units() const { return {impl_->units.begin(), impl_->units.end()}; }
std::vector<StatePiece> Zero::state(bool to_load, bool make) { return impl_->state(to_load, make); }
std::map<std::string, double> Zero::numbers() const { return impl_->numbers(); }
void Zero::load_numbers(const std::map<std::string, double>& numbers) { impl_->load_numbers(numbers); }
void Zero::loaded(bool masters) { impl_->loaded(masters); }

}  // namespace lockstep::zero
