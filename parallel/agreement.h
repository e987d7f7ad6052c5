#pragma once
// Checks that all ranks have the same model. Each rank describes its model in lines of text; one small all-gather
// compares the hashes. If the hashes differ, all ranks throw an Error that names the first line that differs.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Describes a model, one line per parameter and buffer: "parameter hidden.weight f32 (8, 4)", "frozen ...", "buffer
/// ...". Names for which `ignore` returns true are left out.
std::vector<std::string> describe_model(nn::Module& module,
                                        const std::function<bool(const std::string& name)>& ignore = {});

/// Checks that all ranks have the same lines. Collective. If lines differ, all ranks throw the same Error, which names
/// the first differing line and the ranks whose line differs from that of rank 0. `op` begins the message.
void check_agreement(const char* op, const std::vector<std::string>& lines, dist::ProcessGroup& group);

/// Throws an Error with the text `message`, and makes every other rank of the group throw it too, even inside a
/// collective.
[[noreturn]] void fail_everywhere(dist::ProcessGroup& group, const std::string& message);

/// Calls fail_everywhere() for parameter `name`, which requires grad but was frozen when `op` wrapped the model. If
/// `group` is null, throws on this rank only.
[[noreturn]] void fail_unfrozen(const char* op, const std::string& name, dist::ProcessGroup* group);

/// Checks that all ranks have frozen the same parameters since the model was wrapped.
class FrozenSince {
 public:
  /// Must be called in every step on all ranks. `names`: the parameters that are frozen now. If ranks disagree, all
  /// throw an Error that lists the names. Costs nothing while the names stay the same, one barrier when they change.
  void agree(const char* op, const std::vector<std::string>& names, dist::ProcessGroup& group);

 private:
  std::vector<std::string> last_;
};

/// Element-wise OR over the ranks of the group: true where any rank has true. All ranks pass the same number of flags.
std::vector<bool> used_by_any(const std::vector<bool>& mine, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
