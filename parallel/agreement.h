#pragma once
// Checks that all ranks have the same model: one small all-gather of hashes. If the hashes differ, all ranks throw an
// Error that names the first line that differs.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// One line per parameter and buffer: "parameter hidden.weight f32 (8, 4)", "frozen ...", "buffer ...". Names for which
/// `ignore` returns true are left out.
std::vector<std::string> describe_model(nn::Module& module,
                                        const std::function<bool(const std::string& name)>& ignore = {});

/// Collective. If the lines differ between ranks, all ranks throw the same Error, which names the first differing line
/// and the ranks whose line is not rank 0's. `op` begins the message.
void check_agreement(const char* op, const std::vector<std::string>& lines, dist::ProcessGroup& group);

/// Throws an Error with the text `message`, and makes every other rank of the group throw it too, even inside a
/// collective.
[[noreturn]] void fail_everywhere(dist::ProcessGroup& group, const std::string& message);

/// fail_everywhere() for parameter `name`, which requires grad but was frozen when `op` wrapped the model. `group`
/// null: throws on this rank only.
[[noreturn]] void fail_unfrozen(const char* op, const std::string& name, dist::ProcessGroup* group);

/// Watches parameters that were trainable when a model was wrapped and are frozen later. All ranks must freeze the same
/// ones.
class FrozenSince {
 public:
  /// Collective, in every step. `names`: the parameters that are frozen now. Ranks that disagree all fail with an Error
  /// that lists the names. Free while nothing changes; otherwise one barrier.
  void agree(const char* op, const std::vector<std::string>& names, dist::ProcessGroup& group);

 private:
  std::vector<std::string> last_;
};

/// Element-wise OR over the ranks of the group: true where any rank has true. All ranks pass the same number of flags.
std::vector<bool> used_by_any(const std::vector<bool>& mine, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
