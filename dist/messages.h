#pragma once
// Point-to-point messages with several peers at once. A message is a header and data. Between two ranks, messages
// arrive in the order in which they were sent. A barrier is made of messages without data.
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "dist/executor.h"

namespace lockstep::dist {

/// The group, timeout and callbacks of one call of move_messages().
struct Mail {
  Transport& transport;
  Control& control;
  const std::string& group;
  const std::vector<int>& world_ranks;
  Seconds timeout;  ///< the exchange fails after this time without progress
  bool checksum = false;
  const Activity* activity = nullptr;          ///< reported to the control plane again when a reported wait is over
  std::function<void()> slow;                  ///< called once, when nothing moved for 50 ms
  std::function<std::string()> late;           ///< returns the text of the timeout error; empty: a default text
  const std::atomic<bool>* awaited = nullptr;  ///< the wait is reported only while this is true; null: always
};

/// Sends and receives all messages; those of one peer and direction in the order given. Throws DistError.
CallTraffic move_messages(const Mail& mail, std::vector<Message>& messages);

}  // namespace lockstep::dist
