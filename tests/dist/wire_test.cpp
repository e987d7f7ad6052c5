// Foreign or damaged bytes: frames by themselves, and strangers that connect to the port of a running job.
// A number in a test's name is a row of docs/faults.md.
#include "dist/wire.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include "dist/auth.h"
#include "dist/net.h"
#include "tests/dist/job.h"
#include "tests/dist/stranger.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

/// The next frame of the other side.
Frame next_frame(Stranger& stranger) {
  FrameReader reader(body_limit);
  for (const double end = now_seconds() + 20; now_seconds() < end;) {
    reader.push(stranger.got.data(), stranger.got.size());
    stranger.got.clear();
    if (const auto frame = reader.next()) return *frame;
    if (!stranger.receive()) break;
  }
  throw Error("no frame");
}

long resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  return 0;
}

std::string hello(const Nonce& challenge, const std::string& token, uint32_t protocol = wire_protocol) {
  const Nonce number = random_nonce();
  const Proof proof = prove(token, "rank", challenge, number, "control");
  return encode(FrameKind::hello, 0,
                Writer().u32(protocol).bytes(number.data(), number.size()).bytes(proof.data(), proof.size()).body);
}

/// Reads the challenge that greets every connection.
Nonce challenge_of(Stranger& stranger) {
  const Frame frame = next_frame(stranger);
  BodyReader in(frame.body);
  in.u32();
  return in.bytes<32>();
}

}  // namespace

TEST_CASE("wire: fields and frames come back as they went, however they are cut") {
  const Activity activity{.step = 3,
                          .completed = uint64_t(1) << 60,
                          .group = "pp.1",
                          .collective = "all_reduce f32 x 8, tag w1",
                          .waiting = true,
                          .waits_for = 7,
                          .messages = 5,
                          .is_send = true,
                          .sent_to = {{1, 2}, {3, uint64_t(4) << 40}}};
  Writer out;
  out.u8(255).u32(0xfffffffe).u64(~uint64_t(0)).i64(-5).seconds(0.25).text("").text(std::string("a\0b", 3));
  write_activity(out, activity);
  write_failure(out, Fault::deadlock, -1, "why");
  const std::string stream = encode(FrameKind::set, 77, out.body) + encode(FrameKind::heartbeat, 0, "") +
                             encode(FrameKind::reply, 78, std::string(70000, 'x'));
  for (const size_t piece : {size_t(1), size_t(7), size_t(16), size_t(4096), stream.size()}) {
    FrameReader reader(body_limit);
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.push(stream.data() + at, std::min(piece, stream.size() - at));
      while (auto frame = reader.next()) frames.push_back(std::move(*frame));
    }
    REQUIRE(frames.size() == 3);
    CHECK(reader.pending() == 0);
    CHECK((frames[0].kind == FrameKind::set && frames[0].request == 77));
    CHECK(frames[1].body.empty());
    CHECK(frames[2].body == std::string(70000, 'x'));
    BodyReader in(frames[0].body);
    CHECK(in.u8() == 255);
    CHECK(in.u32() == 0xfffffffe);
    CHECK(in.u64() == ~uint64_t(0));
    CHECK(in.i64() == -5);
    CHECK(in.seconds() == 0.25);
    CHECK(in.text(0).empty());
    CHECK(in.text(3) == std::string("a\0b", 3));
    const Activity back = read_activity(in);
    CHECK((back.step == 3 && back.completed == activity.completed && back.group == "pp.1" &&
           back.collective == activity.collective && back.waiting && back.waits_for == 7));
    CHECK((back.messages == 5 && back.is_send && back.sent_to == activity.sent_to && back.taken_from.empty()));
    const DistError failure = read_failure(in);
    CHECK((failure.fault == Fault::deadlock && failure.rank == -1 && std::string(failure.what()) == "why"));
    in.end();
  }
  // A truncated body is rejected, wherever it is cut.
  for (size_t size = 0; size < out.body.size(); ++size) {
    BodyReader in(std::string_view(out.body).substr(0, size));
    CHECK(contains(message([&] {
                     in.u8(), in.u32(), in.u64(), in.i64(), in.seconds(), in.text(0), in.text(3);
                     read_activity(in);
                     read_failure(in);
                   }),
                   "[wire] expected "));
  }
}

TEST_CASE("wire 17: claims are checked before memory is taken") {
  const auto header = [](uint32_t magic, uint32_t length, uint8_t kind, uint8_t zero = 0) {
    return Writer().u32(magic).u32(length).u32(1).u8(kind).u8(zero).u8(0).u8(0).body;
  };
  const std::pair<std::string, std::string> rows[] = {
      {header(wire_magic, 0xffffffff, 1), "[wire] expected a message of at most 4080 bytes, got one of 4294967295"},
      {header(wire_magic, 4081, 1), "[wire] expected a message of at most 4080 bytes, got one of 4081"},
      {header(wire_magic, 0, 0), "[wire] expected a kind of message from 1 to "},
      {header(wire_magic, 0, last_kind + 1), "[wire] expected a kind of message from 1 to "},
      {header(wire_magic, 0, 1, 1), "[wire] expected a kind of message from 1 to "},
      {header(wire_magic + 1, 0, 1), "[wire] expected the magic number of Lockstep's protocol"},
      {"GET / HTTP/1.1\r\n", "[wire] expected the magic number of Lockstep's protocol"},
      {"L!", "[wire] expected the magic number of Lockstep's protocol"},
  };
  const long before = resident_kib();
  for (const auto& [bytes, expected] : rows) {
    FrameReader reader(stranger_limit - wire_header);
    reader.push(bytes.data(), bytes.size());
    CHECK_ERROR(reader.next(), expected);
  }
  CHECK_ERROR(BodyReader(Writer().u32(0xffffffff).body).text(100),
              "[wire] expected a text of at most 100 bytes, got one of 4294967295");
  CHECK_ERROR(BodyReader(Writer().u32(0x20000000).u64(1).body).count(12),
              "[wire] expected 536870912 entries in a message, got bytes for 0");
  CHECK_ERROR(BodyReader(Writer().seconds(NAN).body).seconds(), "[wire] expected seconds >= 0");
  CHECK_ERROR(BodyReader(Writer().seconds(-1).body).seconds(), "[wire] expected seconds >= 0, got -1");
  CHECK_ERROR(BodyReader("x").end(), "[wire] expected the end of a message, got 1 more bytes");
  CHECK(resident_kib() - before < 1024);
}

TEST_CASE("wire: random bytes and flipped bits never do more than throw") {
  std::mt19937_64 random(5);
  int refused = 0;
  Writer body;
  write_activity(body, {});
  const std::string good = encode(FrameKind::activity, 3, body.body);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = i % 2 ? good : std::string(random() % 64, '\0');
    if (i % 2) bytes[random() % bytes.size()] ^= char(1 << (random() % 8));
    else
      for (char& c : bytes) c = char(random());
    FrameReader reader(4096);
    reader.push(bytes.data(), bytes.size());
    try {
      while (const auto frame = reader.next()) {
        BodyReader in(frame->body);
        read_activity(in);
        in.end();
      }
    } catch (const DistError& error) {
      CHECK(error.fault == Fault::protocol);
      ++refused;
    }
  }
  CHECK(refused > 10000);
}

TEST_CASE("auth: a proof depends on all that goes into it") {
  const Nonce a = random_nonce(), b = random_nonce();
  CHECK(a != b);
  const Proof proof = prove("token", "rank", a, b, "control");
  CHECK(same_proof(proof, prove("token", "rank", a, b, "control")));
  CHECK(!same_proof(proof, prove("toker", "rank", a, b, "control")));
  CHECK(!same_proof(proof, prove("", "rank", a, b, "control")));
  CHECK(!same_proof(proof, prove("token", "store", a, b, "control")));
  CHECK(!same_proof(proof, prove("token", "rank", b, a, "control")));
  CHECK(!same_proof(proof, prove("token", "rank", a, b, "control2")));
  // HMAC-SHA-256 of the same bytes by another implementation (Python's hmac).
  Nonce zero{}, one;
  one.fill(1);
  const Proof known = prove("key", "rank", zero, one, "x");
  std::string digits;
  for (const uint8_t byte : known) digits += str("0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]);
  CHECK(digits == "25c305921694cd5db22651318bb2e992b019f99174e93828b9796291046d4ec0");
  const std::string token = random_token();
  CHECK(token.size() == 64);
  CHECK(token.find_first_not_of("0123456789abcdef") == token.npos);
  CHECK(token != random_token());
}

TEST_CASE("wire 18, 24, 25: strangers are shut out and the job goes on") {
  TestJob job(2, 1, 60);
  const auto said = job.run({0, 1}, [&](Control& control) {
    if (control.place().rank == 1) return control.barrier("end", {0, 1}, Seconds(60));
    const int port = control.place().port;
    control.set("secret", "value");
    // 1,000 half-open connections: only a few are kept, and none for long. Sending one byte at a time does not extend
    // the limit of 5 s.
    Stranger slow(port);
    const double start = now_seconds();
    {
      std::vector<Stranger> many;
      for (int i = 0; i < 1000; ++i) {
        many.emplace_back(port);
        if (i == 0) many[0].say("L");
      }
      CHECK(open_files() < 1000 + 256 + 60);  // the clients' ends, and at most 256 on the server's side
      control.set("while it lasts", "works");
      CHECK(control.get("while it lasts", Seconds(5)) == "works");
    }
    Stranger drip(port);
    std::jthread drops([&](std::stop_token over) {  // connects and disconnects during the checks below
      for (const char c : encode(FrameKind::hello, 0, std::string(2000, 'x'))) {
        if (over.stop_requested()) break;
        drip.say(std::string(1, c));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    });
    // Sends bytes, checks that the store then closes the connection, and returns its answer.
    const auto shut_out = [](Stranger&& stranger, const std::string& bytes) {
      stranger.say(bytes);
      CHECK(stranger.is_closed());
      return stranger.got;
    };
    CHECK(shut_out(Stranger(port), "GET / HTTP/1.1\r\nHost: x\r\n\r\n").size() < 100);
    shut_out(Stranger(port), encode(FrameKind::hello, 0, std::string(5000, 'x')));  // only 4 KiB are read of a stranger
    std::mt19937_64 random(1);
    for (int i = 0; i < 50; ++i) {
      std::string noise(1 + random() % 8000, '\0');
      for (char& c : noise) c = char(random());
      shut_out(Stranger(port), noise);
    }
    // Well-formed, but with the wrong token.
    for (const std::string token : {"", "a secres", "A secret"}) {
      Stranger thief(port);
      thief.say(hello(challenge_of(thief), token));
      const Frame answer = next_frame(thief);
      CHECK(answer.kind == FrameKind::refused);
      CHECK(contains(answer.body, "wrong token"));
      const std::string get = encode(FrameKind::get, 1, Writer().text("secret").seconds(1).body);
      CHECK(!contains(shut_out(std::move(thief), get), "value"));
    }
    Stranger hasty(port);
    challenge_of(hasty);  // makes a request before authentication
    CHECK(shut_out(std::move(hasty), encode(FrameKind::try_get, 1, Writer().text("secret").body)).empty());
    Stranger old(port);
    old.say(hello(challenge_of(old), "a secret", 9));  // another protocol version
    CHECK(contains(next_frame(old).body, "the store speaks protocol 1, you speak 9"));
    Stranger first(port);
    const std::string overheard = hello(challenge_of(first), "a secret");
    first.say(overheard);
    CHECK(next_frame(first).kind == FrameKind::welcome);
    Stranger second(port);
    challenge_of(second);
    second.say(overheard);  // a proof recorded on another connection is worthless
    CHECK(next_frame(second).kind == FrameKind::refused);
    CHECK(drip.is_closed());
    CHECK(now_seconds() - start < 5 + 5 * slack());
    CHECK(slow.is_closed());
    CHECK(!control.failed());
    CHECK(*control.try_get("secret") == "value");
    control.barrier("end", {0, 1}, Seconds(60));
  });
  check_calm(said);
}
