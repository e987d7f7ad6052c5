#pragma once
// Internal to engine/: the options of optimizers and schedules. A type names its options once, and that one list reads,
// checks, prints and documents them.
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/config_table.h"
#include "optim/schedule_list.h"

namespace lockstep::engine {

/// The params of one optimizer or schedule. A type calls it with each of its options, in order: fields that hold their
/// defaults, and what the file says otherwise afterwards.
class Params {
 public:
  /// where: "optimizer.params"
  Params(std::string where, std::string type, const data::Json& given)
      : given(given), type(std::move(type)), where_(std::move(where)) {}

  Params& operator()(const char* name, const Slot& field, const Range& range = {}) {
    return add_field(name, field, range, false);
  }
  /// The file must say it.
  Params& required(const char* name, const Slot& field, const Range& range = {}) {
    return add_field(name, field, range, true);
  }
  /// Accepted, and has no effect.
  Params& without_effect(const char* name, const data::Json& fallback, const char* why);
  /// Accepted at its default only.
  Params& fixed(const char* name, const data::Json& only, const char* why);
  /// When all are named: others are problems, and so is the Error of `together`, which checks what they are together.
  void check(const std::function<void()>& together);

  const data::Json& given;  ///< what the file says
  const std::string type;
  std::vector<ParamInfo> infos;
  std::vector<std::string> problems, warnings;

 private:
  Params& add_field(const char* name, const Slot& field, const Range& range, bool required);
  /// option: with its default. take: the value as it now is, or nullopt for one that it does not take.
  Params& add(ParamInfo option, const std::string& wants, bool required,
              const std::function<std::optional<data::Json>(const data::Json&)>& take);
  std::string where_;
};

using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;
using MakeOptimizers = std::function<Optimizers(const NamedParameters& parameters, dist::ProcessGroup* group)>;
using MakeSchedule = optim::MakeSchedule;
using Make = std::variant<MakeOptimizers, MakeSchedule>;

/// An optimizer or a schedule by its name in the file, whatever its case.
struct NamedType {
  std::string name, doc;
  std::function<Make(Params& params)> read;  ///< what it gives back is not called when there are problems
};
const std::vector<NamedType>& optimizer_types();
const std::vector<NamedType>& schedule_types();
/// Its params with their defaults.
std::vector<ParamInfo> defaults_of(const NamedType& type);

/// How to make what the config names. Error for params that are wrong.
Make read_named(Kind kind, const NamedConfig& config);

}  // namespace lockstep::engine
