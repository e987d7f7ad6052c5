// Channels of every kind: bytes arrive complete and in order however they are split, peers that are gone are reported,
// and strangers are rejected.
#include "dist/transport.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "dist/fifo.h"
#include "dist/transports/handshake.h"
#include "dist/transports/memory.h"
#include "dist/transports/tcp.h"
#include "tests/dist/job.h"
#include "tests/dist/ranks.h"
#include "tests/dist/stranger.h"
#include "tests/environment.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

std::byte pattern(uint64_t i) { return std::byte((i * 2654435761u >> 13) & 255); }

/// Fills `out` with the bytes from place `from` on.
void fill_pattern(std::span<std::byte> out, uint64_t from) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = pattern(from + i);
}
/// How many of the bytes from place `from` on are wrong.
int64_t wrong_bytes(std::span<const std::byte> here, uint64_t from) {
  int64_t wrong = 0;
  for (size_t i = 0; i < here.size(); ++i) wrong += here[i] != pattern(from + i);
  return wrong;
}

/// Sends `total` bytes to a peer and receives as many at the same time, in pieces of odd sizes.
void check_swap(Transport& transport, int peer, size_t total, uint32_t seed) {
  Channel& channel = transport.channel(peer);
  std::mt19937 random(seed);
  std::vector<std::byte> out(200000), in(200000);
  size_t sent = 0, received = 0;
  int64_t wrong = 0;
  for (int quiet = 0; sent < total || received < total;) {
    size_t moved = 0;
    if (sent < total) {
      const size_t n = std::min<size_t>(total - sent, 1 + random() % (random() % 3 ? 300 : out.size()));
      fill_pattern({out.data(), n}, sent);
      moved = channel.send(out.data(), n, random() % 4 == 0 && sent + n < total);
      sent += moved;
    }
    if (received < total) {
      const size_t n = std::min<size_t>(total - received, 1 + random() % (random() % 3 ? 300 : in.size()));
      size_t got = 0;
      if (random() % 2) {
        const auto here = channel.arrived();
        got = std::min(n, here.size());
        wrong += wrong_bytes(here.first(got), received);
        if (got > 0) channel.consume(got);
      } else {
        got = channel.receive(in.data(), n);
        wrong += wrong_bytes({in.data(), got}, received);
      }
      received += got;
      moved += got;
    }
    if (moved > 0) quiet = 0;
    else transport.idle(quiet++);
  }
  LOCKSTEP_CHECK(wrong == 0, wrong, " bytes of ", total, " differ");
}

/// Calls move(done) until it has moved `bytes` bytes; it returns how many it moves.
void move_all(Transport& link, size_t bytes, const std::function<size_t(size_t done)>& move) {
  size_t done = 0;
  for (int round = 0; done < bytes; ++round) {
    const size_t moved = move(done);
    done += moved;
    if (moved == 0) link.idle(round);
  }
}

}  // namespace

TEST_CASE("transport: a fifo keeps bytes in one piece across its end, and never holds more than it can") {
  constexpr size_t capacity = 4096;
  const auto inbox = Inbox::create(2, capacity);
  FifoWriter writer(inbox->fifo(1), capacity);
  FifoReader reader(inbox->fifo(1), capacity);
  CHECK(reader.readable().empty());
  std::vector<std::byte> data(5000);
  uint64_t sent = 0, received = 0;
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const size_t n = random() % data.size();
    fill_pattern({data.data(), n}, sent);
    const size_t taken = writer.write(data.data(), n);
    CHECK(taken == std::min<size_t>(n, capacity - (sent - received)));
    sent += taken;
    const auto here = reader.readable();
    REQUIRE(here.size() == sent - received);
    CHECK(wrong_bytes(here, received) == 0);
    const size_t eaten = here.empty() ? 0 : random() % (here.size() + 1);
    reader.consume(eaten);
    received += eaten;
  }
  writer.close();
  CHECK(reader.is_closed());
  CHECK_FALSE(writer.is_abandoned());
  inbox->abandon();
  CHECK(writer.is_abandoned());
}

TEST_CASE("transport: every kind of channel keeps the order of bytes, both ways at once") {
  const size_t before = open_files();
  struct Row {
    const char* transport;
    const char* streams;
    const char* kind;
  };
  for (const Row& row : {Row{"threads", "1", "threads"}, Row{"auto", "1", "threads"}, Row{"shm", "1", "shared memory"},
                         Row{"tcp", "1", "tcp"}, Row{"tcp", "3", "tcp"}}) {
    INFO("transport ", row.transport, ", streams ", row.streams);
    const testing::EnvironmentVariable streams("LOCKSTEP_TCP_STREAMS", row.streams);
    Seats(3, row.transport).check([&](int rank, Control&, Transport& transport) {
      // in ascending order: then the smallest unfinished pair can always continue
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        Channel& channel = transport.channel(peer);
        LOCKSTEP_CHECK(&channel == &transport.channel(peer) && std::string(channel.kind()) == row.kind, "kind ",
                       channel.kind());
        for (const size_t total : {0, 1, 65536, 2000003}) check_swap(transport, peer, total, uint32_t(rank));
      }
      LOCKSTEP_CHECK(contains(message([&] { transport.channel(rank); }), "expected `peer` to be another rank"),
                     "channel to oneself");
    });
  }
  CHECK(open_files() == before);
}

TEST_CASE("transport: bytes that were sent are read after the sender has gone, then its end is said") {
  for (const char* transport : {"threads", "shm", "tcp"}) {
    CAPTURE(transport);
    std::atomic<bool> gone{false};
    const bool connects = std::string(transport) == "tcp";  // then rank 0 waits for a byte of rank 1
    const auto body = [&](int rank, Control&, Transport& link) {
      char text[6] = {};
      const auto send = [&](const char* what) {
        move_all(link, std::strlen(what), [&](size_t done) {
          return link.channel(1 - rank).send(reinterpret_cast<const std::byte*>(what) + done, std::strlen(what) - done);
        });
      };
      const auto receive = [&](size_t bytes) {
        move_all(link, bytes, [&](size_t done) {
          return link.channel(1 - rank).receive(reinterpret_cast<std::byte*>(text) + done, bytes - done);
        });
      };
      if (rank == 0) {
        send("hello");
        if (connects) receive(1);
        throw Error("done");
      }
      if (connects) send("x");
      while (!gone) std::this_thread::yield();
      receive(5);
      LOCKSTEP_CHECK(std::string(text) == "hello", "got ", text);
      receive(1);  // throws
    };
    const auto errors = Seats(2, transport).run(body, [&](int rank) {
      if (rank == 0) gone = true;
    });
    CHECK(errors[0] == "done");
    CHECK_MESSAGE(contains(errors[1], "rank 0 closed its"), errors[1]);
  }
}

TEST_CASE("transport: shared memory between processes; kill -9 leaves nothing") {
  // A parent reads and a child writes and is killed. The addresses that normally travel through the store are known to
  // both.
  const auto inbox = Inbox::create(2, 1 << 16);
  const InboxAddress address = inbox->address();
  const pid_t child = fork();
  if (child == 0) {
    try {
      const auto own = Inbox::create(2, 1 << 16);
      const auto channel = make_memory_channel(own, 1, 0, 0, address, true);
      std::vector<std::byte> data(100000);
      fill_pattern(data, 0);
      for (size_t done = 0; done < data.size();) done += channel->send(data.data() + done, data.size() - done);
      kill(getpid(), SIGKILL);
    } catch (...) { _exit(3); }
  }
  const auto channel = make_memory_channel(
      inbox, 0, 1, 1, {.pid = child, .process = "other", .nonce = "other", .fd = 900, .capacity = 1 << 16}, true);
  size_t received = 0;
  int64_t wrong = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (received < 100000 && std::chrono::steady_clock::now() < until) {
    const auto here = channel->arrived();
    wrong += wrong_bytes(here, received);
    received += here.size();
    channel->consume(here.size());
  }
  CHECK(received == 100000);
  CHECK(wrong == 0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  std::byte one{};
  CHECK_ERROR(channel->send(&one, 1), "rank 1 closed its side");  // the process is gone
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    CHECK_FALSE(contains(entry.path().string(), "lockstep"));
}

TEST_CASE("transport: unreachable addresses are rejected with a remedy") {
  const auto inbox = Inbox::create(2, 1 << 16);
  std::byte one{};
  const InboxAddress other_file{.pid = getpid(),
                                .process = "other",
                                .nonce = std::string(32, 'x'),
                                .fd = inbox->address().fd,
                                .capacity = 1 << 16};
  CHECK_ERROR(make_memory_channel(inbox, 0, 1, 1, other_file, true)->send(&one, 1), "LOCKSTEP_TRANSPORT=tcp");
  CHECK(contains(Seats(1, "pigeon").run([](int, Control&, Transport&) {})[0],
                 "expected auto, threads, shm or tcp, got \"pigeon\""));
  const testing::EnvironmentVariable streams("LOCKSTEP_TCP_STREAMS", "many");
  const auto errors = Seats(2, "tcp").run([](int rank, Control&, Transport& t) {
    if (rank == 0) t.channel(1);
    throw Error("done");
  });
  CHECK(contains(errors[0], "expected LOCKSTEP_TCP_STREAMS to be a number from 1 to 64, got 'many'"));
}

TEST_CASE("transport: unauthenticated connections get nowhere, and do not disturb the others") {
  Seats(2, "tcp").check([&](int rank, Control& control, Transport& transport) {
    if (rank == 0) return check_swap(transport, 1, 100000, 2);
    const auto listener = Listener::of(control);  // this rank's listener
    // Answers the challenge of the listener, which then says nothing and closes the connection.
    const auto visit = [&](const std::function<std::string(const Nonce& challenge)>& answer) {
      Stranger guest(listener->port(), listener->host());
      for (const double end = now_seconds() + 20; guest.got.size() < handshake::hello_bytes;)
        LOCKSTEP_CHECK(guest.receive() && now_seconds() < end, "no hello");
      Nonce challenge;
      std::memcpy(challenge.data(), guest.got.data() + 8, sizeof challenge);
      guest.got.clear();
      guest.say(answer(challenge));
      LOCKSTEP_CHECK(guest.is_closed() && guest.got.empty(), "the door let a stranger in, or says nothing");
    };
    // An answer that is wrong only in its token or its job.
    const auto answer = [&](const std::string& token, const std::string& job, const Nonce& challenge) {
      const auto purpose = handshake::Purpose{.job = job, .what = "world 0-1", .stripe = 0, .stripes = 1}.text();
      const Nonce number = random_nonce();
      return handshake::Answer{number, prove(token, "rank", challenge, number, purpose), purpose}.text();
    };
    std::string replay;
    visit([](const Nonce&) { return "GET / HTTP/1.1\r\nHost: here\r\n\r\n" + std::string(3000, 'x'); });
    visit([&](const Nonce& challenge) { return replay = answer("another token", "lockstep", challenge); });
    visit([&](const Nonce&) { return replay; });
    visit([&](const Nonce& challenge) { return answer(control.place().token, "other", challenge); });
    std::vector<Stranger> half_open;
    for (int i = 0; i < 100; ++i) half_open.emplace_back(listener->port(), listener->host());
    check_swap(transport, 0, 100000, 1);
    visit([](const Nonce&) { return "slow"; });  // closed at its deadline
  });
}
