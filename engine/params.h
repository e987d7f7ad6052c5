#pragma once
// The options of optimizers and schedules in configuration files. Each type of optimizer or schedule lists its options
// once; the list is used to read, check, print and document them.
//
// Extensions add types: an extension's meson.build sets `optimizer_types` or `schedule_types` to ['NAME'], and one of
// its sources defines std::vector<NamedType> lockstep::engine::NAME(). meson generates the lists, from the extensions
// that are built (lockstep/list.cpp.in).
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/config_table.h"
#include "optim/schedule.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

/// Reads the params of one optimizer or schedule. Call the object once for each option, with a field that holds the
/// option's default. If the file sets the option, the call stores the file's value in the field.
class Params {
 public:
  /// where: prefix of messages, such as "optimizer.params"
  Params(std::string where, std::string type, const data::Json& given)
      : given(given), type(std::move(type)), where_(std::move(where)) {}

  /// Adds an option that a configuration file may leave out.
  Params& operator()(const char* name, const FieldPointer& field, const ValueRange& range = {}) {
    return add_field(name, field, range, false);
  }
  /// Adds an option that a configuration file must set.
  Params& required(const char* name, const FieldPointer& field, const ValueRange& range = {}) {
    return add_field(name, field, range, true);
  }
  /// Adds an option that is accepted without effect.
  Params& without_effect(const char* name, const data::Json& fallback, const char* why);
  /// Adds an option whose default is `only`, and that accepts no other value.
  Params& fixed(const char* name, const data::Json& only, const char* why);
  /// Call it after the last option. Adds a problem for each name in the file that is not an option. together: checks
  /// combinations of options; an Error that it throws becomes a problem, too.
  void check(const std::function<void()>& together);

  const data::Json& given;  ///< the file's params
  const std::string type;
  std::vector<ParamInfo> infos;
  std::vector<std::string> problems, warnings;

 private:
  Params& add_field(const char* name, const FieldPointer& field, const ValueRange& range, bool required);
  /// Adds an option. option: its name and default. wants: describes valid values in messages. take: checks the file's
  /// value, and returns the value in effect, or nullopt if it is invalid.
  Params& add(ParamInfo option, const std::string& wants, bool required,
              const std::function<std::optional<data::Json>(const data::Json&)>& take);
  std::string where_;
};

/// The optimizers made from one "type" in a configuration file: one, or up to two for Muon.
using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;
/// A function that creates the optimizers of one type, such as Muon. All ranks of `group` must call it together if
/// their optimizers exchange gradients.
using MakeOptimizers = std::function<Optimizers(const NamedParameters& parameters, dist::ProcessGroup* group)>;
/// A function that creates a schedule of one type, such as WarmupLR.
using MakeSchedule = optim::MakeSchedule;
/// A function that creates either the optimizers of one type or a schedule of one type.
using Make = std::variant<MakeOptimizers, MakeSchedule>;

/// A type of optimizer or schedule, which a file selects by `name`, ignoring case.
struct NamedType {
  std::string name, doc;
  /// Reads the params, and returns the function that makes the object. Do not call that function if the params have
  /// problems. `read` is null for an optimizer that only programs make.
  std::function<Make(Params& params)> read;
  /// Returns the reasons why an optimizer cannot run under the plan. called: its name in messages. Null: no reasons.
  std::function<std::vector<std::string>(const Config&, const parallel::Plan&, const std::string& called)> reasons = {};
  std::vector<std::string> ignored = {};  ///< keys of the file that have no effect with this optimizer
};
/// The type of optimizer that has this name, ignoring case; nullptr if there is none.
const NamedType* type_named(const std::string& name);
/// The types of optimizers in the extensions that are built.
const std::vector<NamedType>& types_of_extensions();
/// The types of all optimizers that a configuration file can name.
const std::vector<NamedType>& optimizer_types();
/// The types of schedules in the extensions that are built.
const std::vector<NamedType>& schedules_of_extensions();
/// The types of all schedules that a configuration file can name.
const std::vector<NamedType>& schedule_types();
/// The variables of `parameters`.
std::vector<Variable> variables(const NamedParameters& parameters);
/// A type of optimizer that one class implements. fields: a function that adds the options that a file may set.
template <class Class, class O>
NamedType optimizer_type(const char* name, const char* doc, const O& defaults,
                         void (*fields)(Params& p, std::type_identity_t<O>& o),
                         decltype(NamedType::reasons) reasons = {}) {
  return {name, doc,
          [=](Params& p) -> Make {
            O o = defaults;
            fields(p, o);
            p.check([&] { optim::check_options(name, o); });
            return [o](const NamedParameters& parameters, dist::ProcessGroup*) {
              Optimizers made;
              made.push_back(std::make_unique<Class>(variables(parameters), o));
              return made;
            };
          },
          std::move(reasons)};
}
/// A dummy optimizer, to construct a schedule for its checks before a model exists. It has one group for each element
/// of the longest list in the params, because such lists have one value per group.
std::unique_ptr<optim::Optimizer> trial_optimizer(const data::Json& params);
/// A type of schedule that one class implements. fields: a function that adds the options that a file may set.
template <class Class>
NamedType schedule_type(const char* name, const char* doc, void (*fields)(Params& p, typename Class::Options& o)) {
  return {name, doc, [=](Params& p) -> Make {
            typename Class::Options o{};
            fields(p, o);
            p.without_effect("last_batch_iteration", -1, "a loaded checkpoint says where the schedule is");
            const MakeSchedule make = optim::scheduled<Class>(o);
            p.check([&] { make(*trial_optimizer(p.given)); });  // the constructor checks combinations of options
            return make;
          }};
}
/// The options of a type of optimizer or schedule, with their defaults.
std::vector<ParamInfo> defaults_of(const NamedType& type);

/// Returns a function that makes the object that the config describes. Error for an unknown type or wrong params.
Make read_named(ParamsKind kind, const NamedConfig& config);

}  // namespace lockstep::engine
