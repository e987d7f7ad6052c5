#pragma once
// Do all ranks have the same model? One small all-gather when they do; the first line that differs when they do not.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// One line a parameter and buffer: "parameter hidden.weight f32 (8, 4)", "frozen ...", "buffer ...".
std::vector<std::string> describe_model(nn::Module& module,
                                        const std::function<bool(const std::string& name)>& ignore = {});

/// Called by all ranks. When the lines differ, all ranks throw the same Error, which names the first line that differs
/// and the ranks that have another there than rank 0.
void check_agreement(const char* op, const std::vector<std::string>& lines, dist::ProcessGroup& group);

/// Every rank of the group raises this, wherever it waits.
[[noreturn]] void fail_everywhere(dist::ProcessGroup& group, const std::string& message);

/// The same of a parameter that wants a gradient and was frozen when `op` was made. null: this rank is alone.
[[noreturn]] void fail_unfrozen(const char* op, const std::string& name, dist::ProcessGroup* group);

/// What was trained when something was made of a model may be frozen and trained again later, by all ranks alike.
class FrozenSince {
 public:
  /// Called by all ranks, in every step, with the names of what is frozen now: ranks that differ all fail, and are told
  /// these names. Costs nothing while nothing changes.
  void agree(const char* op, const std::vector<std::string>& names, dist::ProcessGroup& group);

 private:
  std::vector<std::string> last_;
};

/// Which of some things any rank of the group used; each says it of the same ones.
std::vector<bool> used_by_any(const std::vector<bool>& mine, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
