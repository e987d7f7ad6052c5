// Headers of collectives: sealing, comparison and description.
#include <doctest/doctest.h>

#include <cstring>

#include "../messages.h"
#include "dist/fingerprint.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

Header make(Collective kind = Collective::all_reduce, int rank = 0) {
  Header h = header_of({.collective = kind, .count = 8, .tag = "w1"}, 77, 9, rank);
  h.payload = 32;
  seal(h);
  return h;
}

}  // namespace

TEST_CASE("fingerprint: crc32c") {
  CHECK(crc32c("", 0) == 0);
  CHECK(crc32c("123456789", 9) == 0xe3069283);  // the check value of the CRC catalogue
  const std::string zeros(32, '\0');
  CHECK(crc32c(zeros.data(), 32) == 0x8a9136aa);  // RFC 3720, appendix B.4
  for (size_t cut = 0; cut <= 9; ++cut)
    CHECK(crc32c("123456789" + cut, 9 - cut, crc32c("123456789", cut)) == 0xe3069283);
}

TEST_CASE("fingerprint: every flipped bit of a header is found") {
  const Header good = make();
  check_sealed(good, 1);
  for (size_t bit = 0; bit < 8 * sizeof(Header); ++bit) {
    Header h = good;
    reinterpret_cast<unsigned char*>(&h)[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    const std::string text = message([&] { check_sealed(h, 1); });
    CAPTURE(bit);
    CHECK(contains(text, "[collective] damaged header from rank 1: "));
  }
  Header old = good;
  old.protocol = 7;
  seal(old);
  CHECK_ERROR(check_sealed(old, 1), "protocol version 7, this build speaks 2");
}

TEST_CASE("fingerprint: differences are named from both sides") {
  const Header mine = make();
  check_same(mine, make(Collective::all_reduce, 2), "world");
  const struct {
    const char* expected;
    void (*change)(Header&);
  } rows[] = {
      {"rank 2 calls all_reduce f32 x 9 sum, tag w1", [](Header& h) { h.count = 9; }},
      {"rank 2 calls all_reduce i32 x 8 sum, tag w1", [](Header& h) { h.dtype = uint8_t(i32); }},
      {"rank 2 calls all_reduce f32 x 8 sum by an unknown algorithm, tag w1",  // one that this build lacks
       [](Header& h) { h.algorithm = uint32_t(hash_text("butterfly")); }},
      {"rank 2 calls something unknown", [](Header& h) { h.kind = 200; }},
  };
  for (const auto& row : rows) {
    Header theirs = make(Collective::all_reduce, 2);
    row.change(theirs);
    CHECK_ERROR_IS(
        check_same(mine, theirs, "world"),
        str("[all_reduce] ranks disagree in group world, call 9: rank 0 calls all_reduce f32 x 8 sum, tag w1; ",
            row.expected, "; all ranks must make the same calls in the same order"));
    CHECK_ERROR(check_same(theirs, mine, "world"),
                str("call 9: rank 0 calls all_reduce f32 x 8 sum, tag w1; ", row.expected));
  }
  Header theirs = make(Collective::all_reduce, 2);
  theirs.sequence = 10;
  CHECK_ERROR(check_same(mine, theirs, "dp"),
              "in group dp: rank 0 calls all_reduce f32 x 8 sum, tag w1 as call 9; rank 2 calls all_reduce f32 x 8 "
              "sum, tag w1 as call 10");
  theirs = make(Collective::all_reduce, 2);
  theirs.payload = 36;
  CHECK_ERROR(check_same(mine, theirs, "world"), "rank 0 expects 32 bytes from rank 2, which sends 36");
  theirs.job = 78;
  CHECK_ERROR(check_same(mine, theirs, "world"), "rank 2 sent a header of a different job or group than world");
}

TEST_CASE("fingerprint: a send meets a receive") {
  Header send = make(Collective::send, 0), receive = make(Collective::receive, 1);
  send.root = 1;
  receive.root = 0;
  check_same(receive, send, "world");
  CHECK_ERROR(check_same(make(Collective::receive, 1), make(Collective::receive, 0), "world"), "ranks disagree");
  send.count = 9;
  CHECK_ERROR(check_same(receive, send, "world"),
              "rank 0 calls send f32 x 9 to rank 1, tag w1; rank 1 calls receive f32 x 8 from rank 0, tag w1");
  // Tags that are too long for the header are told apart by their hash.
  Call call;
  call.tag = std::string(100, 'x') + "1";
  const Header a = header_of(call, 1, 1, 0);
  call.tag.back() = '2';
  const Header b = header_of(call, 1, 1, 1);
  CHECK_ERROR(check_same(a, b, "world"), "tag " + std::string(sizeof a.tag_text, 'x') + "...");
}
