// Channels of every kind: bytes arrive complete and in order however they are split, peers that are gone are reported,
// and strangers are rejected.
#include "dist/transport.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
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
#include "tests/environment.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

std::byte pattern(uint64_t i) { return std::byte((i * 2654435761u >> 13) & 255); }

/// Sends and receives `total` bytes at the same time, in pieces of odd sizes; returns the number of wrong bytes.
int64_t swap(Channel& channel, Transport& transport, size_t total, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(200000), in(200000);
  size_t sent = 0, received = 0;
  int64_t wrong = 0;
  for (int quiet = 0; sent < total || received < total;) {
    size_t moved = 0;
    if (sent < total) {
      const size_t n = std::min<size_t>(total - sent, 1 + random() % (random() % 3 ? 300 : out.size()));
      for (size_t i = 0; i < n; ++i) out[i] = pattern(sent + i);
      moved = channel.send(out.data(), n, random() % 4 == 0 && sent + n < total);
      sent += moved;
    }
    if (received < total) {
      const size_t n = std::min<size_t>(total - received, 1 + random() % (random() % 3 ? 300 : in.size()));
      size_t got = 0;
      if (random() % 2) {
        const auto here = channel.arrived();
        got = std::min(n, here.size());
        for (size_t i = 0; i < got; ++i) wrong += here[i] != pattern(received + i);
        if (got > 0) channel.consume(got);
      } else {
        got = channel.receive(in.data(), n);
        for (size_t i = 0; i < got; ++i) wrong += in[i] != pattern(received + i);
      }
      received += got;
      moved += got;
    }
    if (moved > 0) quiet = 0;
    else transport.idle(quiet++);
  }
  return wrong;
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
    for (size_t i = 0; i < n; ++i) data[i] = pattern(sent + i);
    const size_t taken = writer.write(data.data(), n);
    CHECK(taken == std::min<size_t>(n, capacity - (sent - received)));
    sent += taken;
    const auto here = reader.readable();
    REQUIRE(here.size() == sent - received);
    int wrong = 0;
    for (size_t i = 0; i < here.size(); ++i) wrong += here[i] != pattern(received + i);
    CHECK(wrong == 0);
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
    Seats seats(3, row.transport);
    const auto errors = seats.run([&](int rank, Control&, Transport& transport) {
      // in ascending order: then the smallest unfinished pair can always continue
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        Channel& channel = transport.channel(peer);
        LOCKSTEP_CHECK(&channel == &transport.channel(peer) && std::string(channel.kind()) == row.kind, "kind ",
                       channel.kind());
        for (const size_t total : {size_t(0), size_t(1), size_t(65536), size_t(2000003)}) {
          const int64_t wrong = swap(channel, transport, total, uint32_t(rank));
          LOCKSTEP_CHECK(wrong == 0, wrong, " bytes of ", total, " differ");
        }
      }
      LOCKSTEP_CHECK(contains(message([&] { transport.channel(rank); }), "expected `peer` to be another rank"),
                     "channel to oneself");
    });
    for (const auto& e : errors) CHECK(e == "");
  }
  CHECK(open_files() == before);
}

TEST_CASE("transport: bytes that were sent are read after the sender has gone, then its end is said") {
  for (const char* transport : {"threads", "shm", "tcp"}) {
    CAPTURE(transport);
    Seats seats(2, transport);
    std::atomic<bool> gone{false};
    const auto errors = seats.run(
        [&](int rank, Control&, Transport& link) {
          char text[6] = {};
          if (rank == 0) {
            Channel& channel = link.channel(1);
            for (size_t done = 0; done < 5;)
              done += channel.send(reinterpret_cast<const std::byte*>("hello") + done, 5 - done);
            if (std::string(transport) == "tcp")
              // Until the connection is established.
              for (int i = 0; channel.receive(reinterpret_cast<std::byte*>(text), 1) == 0; ++i) link.idle(i);
            throw Error("done");
          }
          if (std::string(transport) == "tcp")
            for (int i = 0; link.channel(0).send(reinterpret_cast<const std::byte*>("x"), 1) == 0; ++i) link.idle(i);
          while (!gone) std::this_thread::yield();
          Channel& channel = link.channel(0);
          size_t n = 0;
          for (int i = 0; n < 5; ++i) {
            const size_t got = channel.receive(reinterpret_cast<std::byte*>(text) + n, 5 - n);
            n += got;
            if (got == 0) link.idle(i);
          }
          LOCKSTEP_CHECK(std::string(text) == "hello", "got ", text);
          for (int i = 0;; ++i) {
            channel.receive(reinterpret_cast<std::byte*>(text), 1);
            link.idle(i);
          }  // the loop ends when receive() throws
        },
        "world",
        [&](int rank) {
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
      for (size_t i = 0; i < data.size(); ++i) data[i] = pattern(i);
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
    for (size_t i = 0; i < here.size(); ++i) wrong += here[i] != pattern(received + i);
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
  Seats seats(2, "tcp");
  const auto errors = seats.run([&](int rank, Control& control, Transport& transport) {
    if (rank == 1) {
      const auto listener = Listener::of(control);  // this rank's listener
      const SocketAddress address = resolve(listener->host(), listener->port()).front();
      const auto visit = [&](const std::function<void(int, const Nonce&)>& talk) {
        int problem = 0;
        Fd fd = connect_to(address, Clock::now() + std::chrono::seconds(10), problem);
        LOCKSTEP_CHECK(fd, "cannot connect: ", std::strerror(problem));
        const auto read = [&](std::byte* to, size_t bytes) {  // false if the listener closed the connection
          for (size_t n = 0; n < bytes;) {
            pollfd entry{fd.get(), POLLIN, 0};
            LOCKSTEP_CHECK(poll(&entry, 1, 30000) == 1, "the door says nothing");
            const ssize_t got = ::recv(fd.get(), to + n, bytes - n, 0);
            if (got <= 0) return false;
            n += size_t(got);
          }
          return true;
        };
        std::byte hello[handshake::hello_bytes];
        LOCKSTEP_CHECK(read(hello, sizeof hello), "no hello");
        Nonce challenge;
        std::memcpy(challenge.data(), hello + 8, sizeof challenge);
        talk(fd.get(), challenge);
        LOCKSTEP_CHECK(!read(hello, 1), "the door let a stranger in");
      };
      const auto say = [](int fd, const std::string& text) {
        LOCKSTEP_CHECK(::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size()), "send");
      };
      const std::string purpose =
          handshake::Purpose{.job = "lockstep", .what = "world 0-1", .stripe = 0, .stripes = 1}.text();
      handshake::Answer replay;
      visit([&](int fd, const Nonce&) { say(fd, "GET / HTTP/1.1\r\nHost: here\r\n\r\n" + std::string(3000, 'x')); });
      visit([&](int fd, const Nonce& challenge) {
        replay = {.number = random_nonce(),
                  .proof = prove("another token", "rank", challenge, Nonce{}, purpose),
                  .purpose = purpose};
        say(fd, replay.text());
      });
      visit([&](int fd, const Nonce&) { say(fd, replay.text()); });
      visit([&](int fd, const Nonce& challenge) {  // knows the token, but belongs to another job
        handshake::Answer answer{
            .number = random_nonce(),
            .proof = {},
            .purpose = handshake::Purpose{.job = "other", .what = "world 0-1", .stripe = 0, .stripes = 1}.text()};
        answer.proof = prove(control.place().token, "rank", challenge, answer.number, answer.purpose);
        say(fd, answer.text());
      });
      std::vector<Fd> half_open;
      int problem = 0;
      for (int i = 0; i < 100; ++i)
        half_open.push_back(connect_to(address, Clock::now() + std::chrono::seconds(10), problem));
      const int64_t wrong = swap(transport.channel(0), transport, 100000, 1);
      LOCKSTEP_CHECK(wrong == 0, wrong, " bytes differ");
      visit([&](int fd, const Nonce&) { say(fd, "slow"); });  // closed at its deadline
      return;
    }
    const int64_t wrong = swap(transport.channel(1), transport, 100000, 2);
    LOCKSTEP_CHECK(wrong == 0, wrong, " bytes differ");
  });
  for (const auto& e : errors) CHECK(e == "");
}
