// Comparing models between ranks by hash, then by text. See agreement.h.
#include "parallel/agreement.h"

#include <algorithm>
#include <sstream>

#include "base/suggest.h"
#include "dist/control.h"
#include "dist/fingerprint.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "nn/init.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

std::vector<std::string> describe_model(nn::Module& module,
                                        const std::function<bool(const std::string& name)>& ignore) {
  std::vector<std::string> lines;
  for (const auto& p : module.named_parameters()) {
    if (ignore && ignore(p.name)) continue;
    lines.push_back(str(p.variable.requires_grad() ? "parameter " : "frozen ", p.name, " ", p.variable.dtype(), " ",
                        p.variable.shape()) +
                    nn::origin_of(p.variable));
  }
  for (const auto& b : module.named_buffers())
    if (!ignore || !ignore(b.name))
      lines.push_back(str("buffer ", b.name, " ", b.tensor.dtype(), " ", b.tensor.shape()));
  return lines;
}

void check_agreement(const char* op, const std::vector<std::string>& lines, dist::ProcessGroup& group) {
  if (group.size() == 1) return;
  std::string mine;
  for (const std::string& line : lines) mine += line + "\n";
  const Tensor full = empty({2 * group.size()}, {.dtype = i64, .device = cpu});
  group.all_gather(full, Tensor::from({int64_t(dist::hash_text(mine)), int64_t(mine.size())}, {2}).to(cpu),
                   {.tag = "hash of the model"});
  const std::vector<int64_t> all = full.to_vector<int64_t>();
  if (std::equal(all.begin() + 2, all.end(), all.begin())) return;
  std::vector<std::vector<std::string>> models;
  for (const std::string& text : dist::gather_texts(mine, group, "description of the model")) {
    std::istringstream in(text);
    models.emplace_back();
    for (std::string line; std::getline(in, line);) models.back().push_back(line);
  }
  for (size_t i = 0;; ++i) {
    const auto line = [&](int rank) {
      return i < models[size_t(rank)].size() ? "'" + models[size_t(rank)][i] + "'" : std::string("nothing");
    };
    std::string differ;
    for (int rank = 1; rank < group.size(); ++rank) {
      if (line(rank) != line(0))
        differ += str(differ.empty() ? "" : ", ", "rank ", group.world_rank(rank), " has ", line(rank));
    }
    LOCKSTEP_CHECK(differ.empty(), "[", op, "] expected the same model and options on all ranks; line ", i + 1,
                   " is the first that differs: rank ", group.world_rank(0), " has ", line(0), ", ", differ,
                   "; build and configure every rank alike");
    // All lines of the texts have been compared and are equal, although their hashes differ.
    LOCKSTEP_CHECK(
        i < models[0].size(), "[", op,
        "] expected the same model and options on all ranks, got some that differ in no line; this is a bug in "
        "Lockstep, please report it");
  }
}

void fail_everywhere(dist::ProcessGroup& group, const std::string& message) {
  if (group.size() == 1) fail(message);
  throw group.control().report(dist::Fault::rank_failed, group.world_rank(group.rank()), message);
}

void fail_unfrozen(const char* op, const std::string& name, dist::ProcessGroup* group) {
  const std::string message = str("[", op, "] ", name,
                                  " requires grad, but it was frozen when the model was wrapped, so no step would "
                                  "train it on all ranks. Wrap the model while everything that will be trained "
                                  "requires grad, and freeze (requires_grad_(false)) afterwards; or wrap it again");
  if (!group) fail(message);
  fail_everywhere(*group, message);
}

void FrozenSince::agree(const char* op, const std::vector<std::string>& names, dist::ProcessGroup& group) {
  if (names == last_) return;
  last_ = names;
  if (group.size() == 1) return;
  const std::string all = names.empty() ? "none" : list_names(names, names.size());
  group.barrier(dist::Seconds{0}, str(op, " frozen: ", all));  // fails if a rank has another list or is elsewhere
}

std::vector<bool> used_by_any(const std::vector<bool>& mine, dist::ProcessGroup& group) {
  const auto any = dist::all_reduced(std::vector<int32_t>(mine.begin(), mine.end()), group,
                                     {.op = dist::ReduceOp::max, .tag = "used parameters"});
  return {any.begin(), any.end()};
}

}  // namespace lockstep::parallel
