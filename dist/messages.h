#pragma once
// Point to point: messages to and from several peers at once. Each is a header and its bytes; between two ranks
// messages arrive in the order in which they were sent. Barriers are messages without bytes.
#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dist/executor.h"

namespace lockstep::dist {

struct Message {
  bool is_send = true;
  int peer = 0;  ///< rank of the group
  std::span<std::byte> data;
  Header header;  ///< what is sent, or what is expected
};

struct Mail {
  Transport& transport;
  Control& control;
  const std::string& group;
  const std::vector<int>& world_ranks;
  Seconds timeout;  ///< without any progress
  bool checksum = false;
  const Activity* activity = nullptr;          ///< told again to the control plane when a wait that it knew of is over
  std::function<void()> slow;                  ///< called once when nothing moved for 50 ms
  std::function<std::string()> late;           ///< text of the timeout; empty: what explain() says
  const std::atomic<bool>* awaited = nullptr;  ///< while it is false, nobody is told of the wait
};

/// Moves all messages, those of one peer and direction in their order. Throws DistError.
Moved move_messages(const Mail& mail, std::vector<Message>& messages);

}  // namespace lockstep::dist
