// texts.cpp: collectives on short texts. See texts.h.
#include "dist/texts.h"

#include <algorithm>
#include <cstring>

namespace lockstep::dist {
namespace {

Tensor counts(const std::vector<int64_t>& values) { return Tensor::from(values, {int64_t(values.size())}).to(cpu); }
Tensor bytes_of(int64_t size) { return Tensor(Storage::allocate(size, cpu), 0, {size}, {1}, u8); }

}  // namespace

std::vector<std::string> gather_texts(const std::string& mine, ProcessGroup& group, const std::string& tag) {
  const Tensor sizes = counts(std::vector<int64_t>(size_t(group.size())));
  group.all_gather(sizes, counts({int64_t(mine.size())}), {.tag = tag + ", sizes"});
  const std::vector<int64_t> size = sizes.to_vector<int64_t>();
  const int64_t longest = *std::max_element(size.begin(), size.end());
  std::vector<std::string> texts(size.size());
  if (longest == 0) return texts;
  const Tensor part = bytes_of(longest), all = bytes_of(longest * group.size());
  std::memset(part.raw_data(), 0, size_t(longest));
  std::memcpy(part.raw_data(), mine.data(), mine.size());
  group.all_gather(all, part, {.tag = tag});
  for (size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(static_cast<const char*>(all.raw_data()) + int64_t(r) * longest, size_t(size[r]));
  return texts;
}

std::string broadcast_text(const std::string& text, int root, ProcessGroup& group, const std::string& tag) {
  const Tensor size = counts({int64_t(text.size())});
  group.broadcast(size, root, {.tag = tag + ", size"});
  const Tensor bytes = bytes_of(size.item<int64_t>());
  char* const at = static_cast<char*>(bytes.raw_data());
  if (group.rank() == root) std::copy(text.begin(), text.end(), at);
  group.broadcast(bytes, root, {.tag = tag});
  return {at, size_t(bytes.numel())};
}

}  // namespace lockstep::dist
