// messages.cpp: the loop that sends and receives messages. See messages.h.
#include "dist/messages.h"

#include <algorithm>

#include "dist/links.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t round_bytes = 128 << 10;  // bytes after which other peers get their turn

// The messages in one direction between this rank and a peer.
struct MessageStream {
  Channel* channel;
  bool is_send;
  std::vector<Message*> messages;
  size_t next = 0;  // index of the current message
  size_t header_done = 0, data_done = 0;
  Header theirs;

  bool done() const { return next == messages.size(); }
};

size_t send_some(MessageStream& s) {
  Message& m = *s.messages[s.next];
  const size_t moved = send_rest(*s.channel, &m.header, sizeof(Header), s.header_done);
  if (s.header_done < sizeof(Header)) return moved;
  return moved + send_rest(*s.channel, m.data.data(), std::min(m.data.size(), s.data_done + round_bytes), s.data_done);
}

size_t receive_some(MessageStream& s, const Mail& mail) {
  Message& m = *s.messages[s.next];
  const int peer = mail.world_ranks[size_t(m.peer)];
  size_t moved = 0;
  if (s.header_done < sizeof(Header)) {
    moved = receive_rest(*s.channel, &s.theirs, sizeof(Header), s.header_done);
    if (s.header_done < sizeof(Header)) return moved;
    check_sealed(s.theirs, peer);
    check_same(m.header, s.theirs, mail.group);  // throws if it differs, before any data is received
  }
  moved += receive_rest(*s.channel, m.data.data(), std::min(m.data.size(), s.data_done + round_bytes), s.data_done);
  if (s.data_done == m.data.size() && mail.checksum &&
      s.theirs.payload_crc != uint16_t(crc32c(m.data.data(), m.data.size()))) {
    throw DistError(Fault::protocol, peer,
                    str("[receive] data of ", describe(s.theirs), " came damaged from rank ", peer,
                        ": checksum differs (LOCKSTEP_COMM_CHECKSUM must be set on all ranks); else test the network"));
  }
  return moved;
}

size_t move_some(MessageStream& s, const std::vector<MessageStream>& all, const Mail& mail) {
  if (!s.is_send) return receive_some(s, mail);
  try {
    return send_some(s);
  } catch (const DistError& error) {
    for (const MessageStream& other : all)
      if (error.fault == Fault::rank_failed && !other.is_send && !other.done() && other.header_done == 0)
        check_what_is_left(*other.channel, other.messages[other.next]->header, mail.group, true);
    throw;
  }
}

}  // namespace

CallTraffic move_messages(const Mail& mail, std::vector<Message>& messages) {
  CallTraffic moved;
  std::vector<MessageStream> streams;
  for (Message& m : messages) {
    m.header.payload = m.data.size();
    if (m.is_send) {
      m.header.payload_crc = mail.checksum ? uint16_t(crc32c(m.data.data(), m.data.size())) : 0;
      seal(m.header);
    }
    Channel* channel = &mail.transport.channel(m.peer);
    auto stream = std::find_if(streams.begin(), streams.end(),
                               [&](const MessageStream& s) { return s.channel == channel && s.is_send == m.is_send; });
    if (stream == streams.end()) stream = streams.insert(stream, MessageStream{channel, m.is_send, {}, 0, 0, 0, {}});
    stream->messages.push_back(&m);
  }

  Clock::time_point last = Clock::now(), reported = last;
  bool slow = false, waits = false;
  size_t left = streams.size();
  for (int idle = 0; left > 0;) {
    bool progress = false;
    for (MessageStream& s : streams) {
      if (s.done()) continue;
      progress |= move_some(s, streams, mail) > 0;
      Message& m = *s.messages[s.next];
      if (s.header_done < sizeof(Header) || s.data_done < m.data.size()) continue;
      (s.is_send ? moved.sent : moved.received) += int64_t(m.data.size());
      if (s.is_send) ++moved.messages;
      s.header_done = s.data_done = 0;
      ++s.next;
      progress = true;
      if (s.done()) --left;
    }
    if (progress) {
      idle = 0;
      if (waits && mail.activity) mail.control.begin(*mail.activity);
      waits = false;
      last = reported = Clock::now();
      continue;
    }
    if (mail.control.failed()) mail.control.raise();
    mail.transport.idle(++idle);
    if (idle < 16) continue;
    const auto now = Clock::now();
    if (!slow && mail.slow && now - last > std::chrono::milliseconds(50)) {
      slow = true;
      mail.slow();
    }
    if (now - reported > mail.control.renewal() && (!mail.awaited || mail.awaited->load())) {
      // Report that this rank waits for one of these messages. Prefer one that it receives, since a send usually
      // completes when the peer receives it.
      const auto blocked =
          std::min_element(streams.begin(), streams.end(), [](const MessageStream& a, const MessageStream& b) {
            return std::pair(a.done(), a.is_send) < std::pair(b.done(), b.is_send);
          });
      const Message& m = *blocked->messages[blocked->next];
      mail.control.waits(mail.world_ranks[size_t(m.peer)], is_message(m.header) ? m.header.sequence : 0, m.is_send);
      waits = true;
      reported = now;
    }
    if (now - last > mail.timeout) {
      const Message& m = messages.front();
      throw DistError(
          Fault::timeout, -1,
          mail.late ? mail.late()
                    : str("[", name_of(Collective(m.header.kind)), "] waited ", mail.timeout.count(), " s in group ",
                          mail.group, " for ", describe(m.header), "; ", mail.control.explain(mail.world_ranks),
                          "; see the output of the late ranks, or raise the timeout"));
    }
  }
  return moved;
}

}  // namespace lockstep::dist
