// Files and JSON: atomic writes under every fault, limits, and what strict parsing rejects.
// A number in a test's name is a row of docs/faults.md.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <thread>

#include "data/files.h"
#include "data/json.h"
#include "tests/faulty_calls.h"
#include "tests/fork.h"
#include "util.h"

using namespace lockstep::data;

using testing::FaultyCalls;
using Fault = FaultyCalls::Fault;

namespace {

/// While it lives, write_atomically() uses these calls.
struct Use {
  explicit Use(FaultyCalls& calls) { use_file_calls(&calls); }
  ~Use() { use_file_calls(nullptr); }
};

}  // namespace

TEST_CASE("write_atomically replaces a file and leaves nothing else") {
  TempDir dir;
  write_atomically(dir / "a", "old");
  write_atomically(dir / "a", std::vector<Bytes>{as_bytes("new "), as_bytes(""), as_bytes("text")});
  CHECK(read_file(dir / "a", 100) == "new text");
  CHECK(dir.files() == 1);
  write_atomically(dir / "empty", "");
  CHECK(read_file(dir / "empty", 0).empty());
}

TEST_CASE("the k-th file operation fails: an Error, the old file, no temporary file") {
  const std::string old_text = "old", new_text(1000, 'n');
  for (const int code : {ENOSPC, EIO, EROFS}) {
    TempDir dir;
    for (int64_t k = 1;; ++k) {
      CAPTURE(k);
      write_atomically(dir / "a", old_text);
      FaultyCalls calls(Fault::fail, k, code);
      const std::string error = error_of([&] {
        const Use use(calls);
        write_atomically(dir / "a", std::vector<Bytes>{as_bytes(new_text), as_bytes("!")});
      });
      const std::string now = read_file(dir / "a", 2000);
      CHECK(dir.files() == 1);
      if (error.empty()) {  // only closing the folder, after it was flushed, may fail without an error
        CHECK(now == new_text + "!");
        CHECK(k > 6);
        if (calls.calls() < k) break;
        continue;
      }
      CHECK(error.find("[file] cannot") == 0);
      if (error.find("new file is in place") != error.npos) CHECK(now == new_text + "!");
      else CHECK(now == old_text);
    }
  }
}

TEST_CASE("short and interrupted writes are no error") {
  const std::string text(1001, 'x');
  for (const auto& [fault, k] : {std::pair{Fault::shorten, 2}, {Fault::shorten, 3}, {Fault::fail, 2}}) {
    TempDir dir;
    FaultyCalls calls(fault, k, EINTR);
    const Use use(calls);
    write_atomically(dir / "a", std::vector<Bytes>{as_bytes(text), as_bytes(text)});
    CHECK(read_file(dir / "a", 3000) == text + text);
  }
}

TEST_CASE("a process killed at the k-th file operation leaves the old or the new file; the next save clears its rest") {
  TempDir dir;
  const std::string old_text = "old", new_text(1000, 'n');
  int64_t k = 0;
  for (int code = 137; code != 0;) {
    ++k;
    CAPTURE(k);
    REQUIRE(k < 30);
    write_atomically(dir / "a", old_text);
    code = testing::in_fork([&] {
      FaultyCalls calls(Fault::kill, k);
      use_file_calls(&calls);
      write_atomically(dir / "a", new_text);
    });
    const std::string now = read_file(dir / "a", 2000);
    CHECK((now == new_text || (code != 0 && now == old_text)));
  }
  CHECK(k > 6);
  write_atomically(dir / "a", old_text);
  CHECK(dir.files() == 1);
}

TEST_CASE("mapped files are opened and closed by some threads while another checks them all") {
  TempDir dir;
  const std::string path = dir.write("mapped", "12345");
  std::atomic<int> running{2};
  const auto open_often = [&] {
    for (int i = 0; i < 200; ++i) MappedFile::open(path)->check();
    --running;
  };
  std::thread first(open_often), second(open_often);
  while (running) check_mapped_files();  // reads what both threads write: a race that ThreadSanitizer would report
  first.join();
  second.join();
  CHECK_NOTHROW(check_mapped_files());
}

TEST_CASE("files 42: a mapped file that changes is told; what it loses reads as zeros, and nothing crashes") {
  TempDir dir;
  const int64_t page = 4096, size = 3 * page + 100;
  for (const int64_t left : {size - 1, 2 * page, page + 1, int64_t(0)}) {
    CAPTURE(left);
    const std::string path = dir.write("mapped", std::string(size_t(size), 'x'));
    const auto file = MappedFile::open(path), other = MappedFile::open(dir.write("other", "1"));
    CHECK_NOTHROW(check_mapped_files());
    std::filesystem::resize_file(path, uintmax_t(left));
    int64_t rest = 0;
    for (const std::byte byte : file->bytes()) rest += byte == std::byte('x');
    CHECK(rest == left);
    CHECK_ERROR(file->check(),
                "mapped to stay as it is while it is in use: it had 12388 bytes, now it has " + std::to_string(left));
    CHECK_ERROR(check_mapped_files(), "it had 12388 bytes");
    CHECK_NOTHROW(other->check());
    file->data()[size - 1] = std::byte('y');  // the mapping stays writable
  }
  CHECK_NOTHROW(check_mapped_files());  // all of them are closed
  const std::string path = dir.write("same size", "12345");
  const auto file = MappedFile::open(path);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK_ERROR(file->check(), "but it was written to");
  const std::string kept = dir.write("kept", "12345");
  const auto mapped = MappedFile::open(kept);
  write_atomically(kept, "another");  // replaces the path by a new file; the mapped one stays
  CHECK_NOTHROW(mapped->check());
  CHECK(mapped->size() == 5);
}

TEST_CASE("files 42: any other SIGBUS still ends the process") {
  TempDir dir;
  const auto mapped = MappedFile::open(dir.write("a", "1"));
  const int code = testing::in_fork([&] {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const int fd = open((dir / "b").c_str(), O_RDWR | O_CREAT, 0600);
    auto* data = static_cast<volatile char*>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0));
    _exit(data[0] + 1);
  });
  // a sanitizer reports it and exits
  CHECK((code > 128 ? code == 128 + SIGBUS : code > 1));
}

TEST_CASE("files 42: files that cannot be read are named") {
  TempDir dir;
  CHECK_ERROR(read_file(dir / "none", 10), "none: No such file");
  CHECK_ERROR(read_file(dir.path.string(), 10), "expected a regular file, got a folder");
  CHECK_ERROR(read_file(dir.write("big", "12345"), 4), "expected at most 4 bytes, got 5");
  CHECK_ERROR(MappedFile::open("/dev/zero"), "expected a regular file");
  CHECK_ERROR(write_atomically(dir / "no/such/folder", "x"), "cannot create");
  CHECK_ERROR(write_atomically(dir.path.string(), "x"), "expected a path to a file");
  CHECK(MappedFile::open(dir.write("empty", ""))->size() == 0);
}

TEST_CASE("json: values, order, and the way back") {
  const Json json = parse_json(
      R"({"b": [1, -2.5, 1e3, true, null], "a": {"text": "\u00e9\n\"\ud83d\ude00"}, "big": 9223372036854775807})",
      "c.json");
  CHECK(json.as_object()[0].first == "b");
  CHECK(json.at("b").as_array()[0].is_int());
  CHECK(json.at("b").as_array()[1].as_number() == -2.5);
  CHECK(!json.at("b").as_array()[2].is_int());
  CHECK(json.at("a").at("text").as_string() == "é\n\"😀");
  CHECK(json.at("big").as_int() == INT64_MAX);
  CHECK(json.find("none") == nullptr);
  for (const int indent : {-1, 2}) CHECK(parse_json(json.dump(indent), "again") == json);
  Json made;
  made["x"]["y"] = 0.1;
  made["list"].push_back(1.0);
  CHECK(made.dump() == R"({"x": {"y": 0.1}, "list": [1.0]})");
  CHECK_ERROR(json.at("b").as_object("c.json: b"), "c.json: b: expected an object, got a list");
  CHECK_ERROR(json.at("none", "c.json"), "c.json: expected a key \"none\"");
  CHECK_ERROR(json.at("b").as_object("c.json: a\nb"), "c.json: a\\x0ab: expected an object, got a list");
}

TEST_CASE("json: texts that are not UTF-8 are told") {
  for (const char* bad : {"\xe9", "a\xff", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc0\x80"}) {
    const Json json = Json::Object{{"é", "字 😀"}, {"list", Json::Array{1, Json::Object{{"x", bad}}}}};
    const std::string* const found = not_utf8(json);
    REQUIRE(found);
    CHECK(*found == bad);
    CHECK_ERROR(parse_json(json.dump(), "t"), "syntax error");
  }
  const Json key = Json::Object{{"caf\xe9", 1}};
  CHECK(not_utf8(key) != nullptr);
  CHECK(not_utf8(Json::Object{{"é", "\x1b"}}) == nullptr);
  const Json controls = "\x1b\x7f\xc2\x9b \xc2\xa0";
  CHECK(controls.dump() == "\"\\u001b\\u007f\\u009b \xc2\xa0\"");
  CHECK(parse_json(controls.dump(), "t") == controls);
}

TEST_CASE("json: numbers of Python's, in files of others") {
  const std::string text =
      R"({"NaN": "NaN, \"-Infinity", "a": [NaN, -Infinity,Infinity, 1e3], "length": 1000000000000000019884624838656,
    "small": -99999999999999999999, "u64": 18446744073709551615, "i64": -9223372036854775808})";
  const Json json = parse_json(text, "c.json", python_json);
  CHECK(json.at("NaN").as_string() == "NaN, \"-Infinity");
  const Json::Array& a = json.at("a").as_array();
  CHECK(std::isnan(a[0].as_number()));
  CHECK(a[1].as_number() == -INFINITY);
  CHECK(a[2].as_number() == INFINITY);
  CHECK(a[3].as_number() == 1000);
  CHECK(json.at("length").as_number() == 1e30);
  CHECK(json.at("small").as_number() == -1e20);
  CHECK(json.at("u64").as_number() == 0x1p64);
  CHECK(json.at("i64").as_int() == INT64_MIN);
  CHECK_ERROR(json.at("length").as_int("c.json: length"), "c.json: length: expected an integer, got a number");
  for (const char* wrong : {"[NaN", "[nan]", "[NaNa]", "[Infinit]", "{NaN: 1}", "[\"NaN]", "NaN NaN"})
    CHECK_ERROR(parse_json(wrong, "c.json", python_json), "c.json:1:");
  for (const char* python : {"[NaN]", "[-Infinity]", "1000000000000000019884624838656"})
    CHECK_ERROR(parse_json(python, "c.json"), "c.json:1:");
}

TEST_CASE("json: invalid texts are rejected with line and column") {
  const std::string deep(65, '['), bomb(1'000'000, '[');
  const std::pair<std::string, const char*> rows[] = {
      {"", "c.json:1:1: syntax error: expected JSON, got nothing"},
      {"{\n  \"lr\": 1,\n  \"lr\": 2\n}", "c.json:3:7: key \"lr\" appears twice"},
      {"{\"a\": 1,}", "c.json:1:9: syntax error"},
      {"[1, 2", "c.json:1:6: syntax error"},
      {"[1] 2", "c.json:1:5: syntax error"},
      {"// no\n1", "c.json:1:1: syntax error"},
      {"NaN", "c.json:1:1: syntax error"},
      {"[1e999]", "c.json:1"},
      {"9223372036854775808", "does not fit in 64 bits"},
      {"99999999999999999999999", "does not fit in 64 bits"},
      {"\"\xff\"", "c.json:1:2: syntax error"},
      {"\"\\ud800\"", "c.json:1"},
      {std::string("{}\0x", 4), "c.json:1:3: unexpected zero byte"},
      {deep, "c.json:1:66: nested deeper than 64 levels"},
      {bomb, "nested deeper than 64"},
  };
  for (const auto& [text, expected] : rows) CHECK_ERROR(parse_json(text, "c.json"), expected);
  CHECK_ERROR(parse_json("[1, 2, 3]", "c.json", {.bytes = 4}), "expected at most 4 bytes of JSON, got 9");
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "c").is_array());
}
