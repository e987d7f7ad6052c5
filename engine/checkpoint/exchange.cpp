#include "engine/checkpoint/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tensor/tensor.h"

namespace lockstep::checkpoints {
namespace {

using Clock = std::chrono::steady_clock;

bool is_alone(dist::ProcessGroup* group) { return !group || group->size() == 1; }

Tensor bytes_of(int64_t size) { return Tensor(Storage::allocate(size, cpu), 0, {size}, {1}, u8); }

}  // namespace

void meet(dist::ProcessGroup* group, const std::string& what, dist::Seconds timeout) {
  if (!is_alone(group)) group->barrier(timeout, what);
}

std::vector<std::string> gather_texts(dist::ProcessGroup* group, const std::string& mine, const std::string& what) {
  if (is_alone(group)) return {mine};
  const int world = group->size();
  const Tensor sizes = Tensor::from(std::vector<int64_t>(size_t(world)), {world});
  group->all_gather(sizes, Tensor::from({int64_t(mine.size())}), {.tag = what + ", sizes"});
  const std::vector<int64_t> size = sizes.to_vector<int64_t>();
  const int64_t longest = *std::max_element(size.begin(), size.end());
  std::vector<std::string> texts(size.size());
  if (longest == 0) return texts;
  const Tensor part = bytes_of(longest), all = bytes_of(longest * world);
  std::memset(part.raw_data(), 0, size_t(longest));
  std::memcpy(part.raw_data(), mine.data(), mine.size());
  group->all_gather(all, part, {.tag = what});
  for (size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(static_cast<const char*>(all.raw_data()) + int64_t(r) * longest, size_t(size[r]));
  return texts;
}

std::string broadcast_text(dist::ProcessGroup* group, const std::string& text, const std::string& what) {
  if (is_alone(group)) return text;
  const Tensor size = Tensor::from({int64_t(text.size())});
  group->broadcast(size, 0, {.tag = what + ", size"});
  const int64_t bytes = size.item<int64_t>();
  if (bytes == 0) return "";
  const Tensor data = bytes_of(bytes);
  if (group->rank() == 0) std::memcpy(data.raw_data(), text.data(), text.size());
  group->broadcast(data, 0, {.tag = what});
  return std::string(static_cast<const char*>(data.raw_data()), size_t(bytes));
}

std::string pack(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& item : list) text += str(item.size(), ':', item);
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t colon = text.find(':', at), size = std::stoull(text.substr(at, colon - at));
    list.push_back(text.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return list;
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const dist::DistError&) { throw; } catch (const std::exception& error) {
    return *error.what() ? error.what() : "an error without a message";
  }
  return "";
}

void Board::pin(const std::string& place, const std::string& text) {
  if (!is_alone(group_)) group_->control().set(prefix_ + place, str(round_, '\n', text));
}

std::string Board::read(const std::string& place, dist::Seconds timeout, const std::string& who) {
  const std::string start = str(round_, '\n');
  auto pause = std::chrono::microseconds(200);
  for (const auto begin = Clock::now();;) {
    const std::optional<std::string> text = group_->control().try_get(prefix_ + place);
    if (text && text->starts_with(start)) return text->substr(start.size());
    LOCKSTEP_CHECK(Clock::now() - begin < timeout, "waited ", timeout.count(), " s for ", who);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(50'000));
  }
}

}  // namespace lockstep::checkpoints
