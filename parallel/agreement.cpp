#include "parallel/agreement.h"

#include <algorithm>
#include <cstring>

#include "dist/fingerprint.h"
#include "nn/build_empty.h"
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

namespace {

/// The text of every rank, on every rank.
std::vector<std::string> gather_texts(const std::string& mine, int64_t longest, dist::ProcessGroup& group) {
  const Tensor part = zeros({longest}, {.dtype = u8, .device = cpu}),
               whole = empty({longest * group.size()}, {.dtype = u8, .device = cpu});
  std::memcpy(part.raw_data(), mine.data(), mine.size());
  group.all_gather(whole, part, {.tag = "description of the model"});
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* begin = static_cast<const char*>(whole.raw_data()) + rank * longest;
    texts.emplace_back(begin, std::find(begin, begin + longest, '\0'));
  }
  return texts;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

void check_agreement(const char* op, const std::vector<std::string>& lines, dist::ProcessGroup& group) {
  if (group.size() == 1) return;
  std::string mine;
  for (const std::string& line : lines) mine += line + "\n";
  const Tensor part = Tensor::from({int64_t(dist::hash_text(mine)), int64_t(mine.size())}, {2}).to(cpu);
  const Tensor whole = empty({2 * group.size()}, {.dtype = i64, .device = cpu});
  group.all_gather(whole, part, {.tag = "hash of the model"});
  const std::vector<int64_t> all = whole.to_vector<int64_t>();
  bool same = true;
  int64_t longest = 1;
  for (int rank = 0; rank < group.size(); ++rank) {
    same &= all[size_t(2 * rank)] == all[0] && all[size_t(2 * rank + 1)] == all[1];
    longest = std::max(longest, all[size_t(2 * rank + 1)]);
  }
  if (same) return;
  std::vector<std::vector<std::string>> models;
  for (const std::string& text : gather_texts(mine, longest, group)) models.push_back(lines_of(text));
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
                   " is the first that differs: rank ", group.world_rank(0), " has ", line(0), ", ", differ);
    LOCKSTEP_CHECK(i < models[0].size(), "[", op, "] the models of the ranks differ");  // cannot be: the hashes did
  }
}

void fail_everywhere(dist::ProcessGroup& group, const std::string& message) {
  if (group.size() == 1) fail(message);
  throw group.control().report(dist::Fault::rank_failed, group.world_rank(group.rank()), message);
}

std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t most = 20;
  std::string list;
  for (size_t k = 0; k < names.size() && k < most; ++k) list += (k ? ", " : "") + names[k];
  return names.size() > most ? str(list, " and ", names.size() - most, " more") : list;
}

std::vector<bool> used_by_any(const std::vector<bool>& mine, dist::ProcessGroup& group) {
  const Tensor map = Tensor::from(std::vector<int32_t>(mine.begin(), mine.end()), {int64_t(mine.size())});
  group.all_reduce(map, {.op = dist::ReduceOp::max, .tag = "used parameters"});
  const std::vector<int64_t> any = map.to_vector<int64_t>();
  return {any.begin(), any.end()};
}

std::string broadcast_text(const std::string& text, int root, dist::ProcessGroup& group) {
  const Tensor length = Tensor::from({int64_t(text.size())}, {1}).to(cpu);
  group.broadcast(length, root, {.tag = "length of a text"});
  const Tensor bytes = empty({length.item<int64_t>()}, {.dtype = u8, .device = cpu});
  char* const at = static_cast<char*>(bytes.raw_data());
  if (group.rank() == root) std::copy(text.begin(), text.end(), at);
  group.broadcast(bytes, root, {.tag = "text"});
  return {at, size_t(bytes.numel())};
}

}  // namespace lockstep::parallel
