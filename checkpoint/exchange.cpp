// Communication of ranks during a save or load. See exchange.h.
#include "checkpoint/exchange.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/clock.h"
#include "base/printable.h"
#include "dist/control.h"
#include "dist/texts.h"

namespace lockstep::checkpoints {

void Ranks::warn(const std::string& what) const {
  if (hear) hear("[checkpoint] " + what);
  else std::cerr << "warning: [checkpoint] " << printable(what) << std::endl;
}

std::vector<std::string> Ranks::gather(const std::string& mine, const std::string& what) const {
  return are_one() ? std::vector<std::string>{mine} : dist::gather_texts(mine, *group, what);
}

std::string Ranks::broadcast(const std::string& text, const std::string& what) const {
  return are_one() ? text : dist::broadcast_text(text, 0, *group, what);
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
    return *error.what() ? error.what() : "an exception without a text; find where it is thrown (gdb: catch throw)";
  }
  return "";
}

void Board::pin(const std::string& place, const std::string& text) {
  if (!ranks_.are_one()) ranks_.group->control().set(prefix_ + place, str(round_, '\n', text));
}

std::string Board::read(const std::string& place, dist::Seconds timeout, const std::string& who) {
  const std::string start = str(round_, '\n');
  auto pause = std::chrono::microseconds(200);
  for (const double begin = steady_seconds();;) {
    const std::optional<std::string> text = ranks_.group->control().try_get(prefix_ + place);
    if (text && text->starts_with(start)) return text->substr(start.size());
    LOCKSTEP_CHECK(steady_seconds() - begin < timeout.count(), "waited ", timeout.count(), " s for ", who,
                   "; see that rank's output, or raise write_timeout");
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(50'000));
  }
}

}  // namespace lockstep::checkpoints
