#pragma once
// Internal to engine/: the options of optimizers and schedules. Each type lists its options once; the list is used to
// read, check, print and document them.
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/config_table.h"
#include "optim/schedule_list.h"

namespace lockstep::engine {

/// The params of one optimizer or schedule. A type makes one call per option, with a field that holds the default. The
/// call replaces the default by the file's value, if the file has one.
class Params {
 public:
  /// where: prefix of messages, such as "optimizer.params"
  Params(std::string where, std::string type, const data::Json& given)
      : given(given), type(std::move(type)), where_(std::move(where)) {}

  /// Adds an option that the file may leave out.
  Params& operator()(const char* name, const Slot& field, const Range& range = {}) {
    return add_field(name, field, range, false);
  }
  /// Adds an option that the file must set.
  Params& required(const char* name, const Slot& field, const Range& range = {}) {
    return add_field(name, field, range, true);
  }
  /// Adds an option that is accepted without effect.
  Params& without_effect(const char* name, const data::Json& fallback, const char* why);
  /// Adds an option that is accepted only at its default.
  Params& fixed(const char* name, const data::Json& only, const char* why);
  /// Ends the list: other names in the file become problems, and so does the Error of `together`, which checks
  /// combinations of options.
  void check(const std::function<void()>& together);

  const data::Json& given;  ///< the file's params
  const std::string type;
  std::vector<ParamInfo> infos;
  std::vector<std::string> problems, warnings;

 private:
  Params& add_field(const char* name, const Slot& field, const Range& range, bool required);
  /// Adds an option. option: holds the default. take: returns the value in effect; nullopt rejects the file's value.
  Params& add(ParamInfo option, const std::string& wants, bool required,
              const std::function<std::optional<data::Json>(const data::Json&)>& take);
  std::string where_;
};

/// The result of creating an optimizer: several for Muon.
using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;
/// Creates the optimizers of a type; 1-bit ones are collective over `group`.
using MakeOptimizers = std::function<Optimizers(const NamedParameters& parameters, dist::ProcessGroup* group)>;
/// Creates the schedule of a type.
using MakeSchedule = optim::MakeSchedule;
/// Creates the optimizers or the schedule of a type.
using Make = std::variant<MakeOptimizers, MakeSchedule>;

/// An optimizer or a schedule by its name in the file, ignoring case.
struct NamedType {
  std::string name, doc;
  std::function<Make(Params& params)> read;  ///< the result must not be called if there are problems
};
/// All optimizers that a file can name.
const std::vector<NamedType>& optimizer_types();
/// All schedules that a file can name.
const std::vector<NamedType>& schedule_types();
/// The params of a type with their defaults.
std::vector<ParamInfo> defaults_of(const NamedType& type);

/// Reads the type and params that the config names. Error for wrong params.
Make read_named(Kind kind, const NamedConfig& config);

}  // namespace lockstep::engine
