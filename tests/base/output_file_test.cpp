// Output files in folders that others can write to: symbolic links are not followed, and pipes do not block.
#include "base/output_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/printable.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
namespace fs = std::filesystem;

TEST_CASE("errors: what a terminal would obey is written out") {
  const std::pair<std::string, std::string> rows[] = {{"plain, \ttabs\nand lines", "plain, \ttabs\nand lines"},
                                                      {"é 字 😀", "é 字 😀"},
                                                      {"\x1b[31mred", "\\x1b[31mred"},
                                                      {"\x1b]0;title\x07", "\\x1b]0;title\\x07"},
                                                      {"a\rb\x7f", "a\\x0db\\x7f"},
                                                      {"\xc2\x9b"
                                                       "2J",
                                                       "\\xc2\\x9b2J"},
                                                      {"caf\xe9\x9b", "caf\\xe9\\x9b"},
                                                      {std::string("\0", 1), "\\x00"}};
  for (const auto& [text, expected] : rows) {
    CHECK(printable(text) == expected);
    CHECK(message([&] { LOCKSTEP_CHECK(false, text); }) == expected);
  }
}

TEST_CASE("output files: what may be written, and read") {
  const testing::TempDir dir;
  dir.write("there", "old\n"), dir.write("target", "kept");
  fs::create_symlink(dir / "target", dir / "link"), fs::create_symlink(dir / "nowhere", dir / "dangling");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  fs::create_directory(dir / "folder");
  const struct {
    std::string path, written, read;  // expected errors
  } rows[] = {{dir / "there", "(no error)", "(no error)"},
              {dir / "new", "(no error)", "No such file"},
              {dir / "link", "symbolic link, which is not followed; remove it", "(no error)"},
              {dir / "dangling", "symbolic link", "No such file"},
              {dir / "pipe", "a pipe or a device", "a pipe or a device"},
              {dir / "folder", "Is a directory", "a pipe or a device"},
              {"/dev/null", "(no error)", "(no error)"}};
  for (const auto& row : rows) {
    CAPTURE(row.path);
    const auto expected = [&](const std::string& said, const std::string& what, const std::string& begins) {
      CHECK(contains(said, what));
      CHECK((said == what || said.starts_with(begins)));
    };
    expected(message([&] { read_start(row.path, 100); }), row.read, row.path + ": cannot be read: ");
    for (const bool anew : {true, false}) {
      expected(message([&] { OutputFile(row.path, anew, "[x] ").add("line\n"); }), row.written,
               "[x] " + row.path + ": cannot be written: ");
    }
  }
  CHECK(dir.read("target") == "kept");
  CHECK(!fs::exists(dir / "nowhere"));
  CHECK(dir.read("there") == "line\nline\n");
  CHECK(read_start(dir / "there", 3) == "lin");
  CHECK(!OutputFile("/dev/full", true).add("x"));
}
