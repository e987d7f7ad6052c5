#pragma once
// Internal to engine/: the options of optimizers and schedules. Each type of optimizer or schedule lists its options
// once; the list is used to read, check, print and document them.
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/config_table.h"
#include "optim/schedule_list.h"

namespace lockstep::engine {

/// Reads the params of one optimizer or schedule. Call the object once for each option, with a field that holds the
/// option's default. If the file sets the option, the call stores the file's value in the field.
class Params {
 public:
  /// where: prefix of messages, such as "optimizer.params"
  Params(std::string where, std::string type, const data::Json& given)
      : given(given), type(std::move(type)), where_(std::move(where)) {}

  /// Adds an option that a configuration file may leave out.
  Params& operator()(const char* name, const Slot& field, const Range& range = {}) {
    return add_field(name, field, range, false);
  }
  /// Adds an option that a configuration file must set.
  Params& required(const char* name, const Slot& field, const Range& range = {}) {
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
  Params& add_field(const char* name, const Slot& field, const Range& range, bool required);
  /// Adds an option. option: its name and default. wants: describes valid values in messages. take: checks the file's
  /// value, and returns the value in effect, or nullopt if it is invalid.
  Params& add(ParamInfo option, const std::string& wants, bool required,
              const std::function<std::optional<data::Json>(const data::Json&)>& take);
  std::string where_;
};

/// The optimizers made from one "type" in a configuration file: one, or up to two for Muon.
using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;
/// A function that creates the optimizers of one type, such as Muon. For 1-bit optimizers, all ranks of `group` must
/// call it together.
using MakeOptimizers = std::function<Optimizers(const NamedParameters& parameters, dist::ProcessGroup* group)>;
/// A function that creates a schedule of one type, such as WarmupLR.
using MakeSchedule = optim::MakeSchedule;
/// A function that creates either the optimizers of one type or a schedule of one type.
using Make = std::variant<MakeOptimizers, MakeSchedule>;

/// A type of optimizer or schedule, which a file selects by `name`, ignoring case.
struct NamedType {
  std::string name, doc;
  std::function<Make(Params& params)> read;  ///< the result must not be called if there are problems
};
/// The types of all optimizers that a configuration file can name.
const std::vector<NamedType>& optimizer_types();
/// The types of all schedules that a configuration file can name.
const std::vector<NamedType>& schedule_types();
/// The options of a type of optimizer or schedule, with their defaults.
std::vector<ParamInfo> defaults_of(const NamedType& type);

/// Returns a function that makes the object that the config describes. Error for an unknown type or wrong params.
Make read_named(Kind kind, const NamedConfig& config);

}  // namespace lockstep::engine
