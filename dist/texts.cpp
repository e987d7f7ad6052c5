#include "dist/texts.h"

#include <algorithm>
#include <cstring>

namespace lockstep::dist {

namespace {

Tensor counts(const std::vector<int64_t>& values) { return Tensor::from(values, {int64_t(values.size())}).to(cpu); }
Tensor memory_of(int64_t size) { return Tensor(Storage::allocate(size, cpu), 0, {size}, {1}, u8); }

}  // namespace

std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& mine, const std::string& tag) {
  std::vector<std::string> texts(size_t(group.size()));
  const Tensor sizes = counts(std::vector<int64_t>(texts.size()));
  group.all_gather(sizes, counts({int64_t(mine.size())}), {.tag = tag + ", sizes"});
  const std::vector<int64_t> size = sizes.to_vector<int64_t>();
  const int64_t longest = *std::max_element(size.begin(), size.end());
  if (longest == 0) return texts;
  const Tensor part = memory_of(longest), all = memory_of(longest * group.size());
  std::memset(part.raw_data(), 0, size_t(longest));
  std::memcpy(part.raw_data(), mine.data(), mine.size());
  group.all_gather(all, part, {.tag = tag});
  for (size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(static_cast<const char*>(all.raw_data()) + int64_t(r) * longest, size_t(size[r]));
  return texts;
}

std::string broadcast_text(ProcessGroup& group, const std::string& text, int root, const std::string& tag) {
  const Tensor size = counts({int64_t(text.size())});
  group.broadcast(size, root, {.tag = tag + ", size"});
  const int64_t bytes = size.item<int64_t>();
  if (bytes == 0) return "";
  const Tensor data = memory_of(bytes);
  if (group.rank() == root) std::memcpy(data.raw_data(), text.data(), text.size());
  group.broadcast(data, root, {.tag = tag});
  return std::string(static_cast<const char*>(data.raw_data()), size_t(bytes));
}

}  // namespace lockstep::dist
