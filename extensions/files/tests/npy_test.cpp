// .npy and .npz: NumPy's files are read exactly and written byte for byte; damaged files are rejected.

#include "extensions/files/npy.h"
#include "data/file_calls.h"
#include "extensions/files/zip.h"
#include "tensor/complex.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

std::string contents_of(const std::string& path) { return read_file(path, 1 << 20); }
std::vector<double> count_up(int64_t count) { return arange(0, double(count)).to_vector<double>(); }

/// A file of version 1: this header verbatim, then `bytes` zero bytes.
std::string npy_file(const std::string& header, size_t bytes) {
  return std::string("\x93NUMPY\1\0", 8) + char(header.size() & 255) + char(header.size() >> 8) + header +
         std::string(bytes, '\0');
}
std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string replaced(std::string text, size_t at, const std::string& bytes) {
  return text.replace(at, bytes.size(), bytes);
}

template <class Read>
void check_messages(const Read& read, const std::string& what,
                    const std::vector<std::pair<std::string, const char*>>& rows) {
  for (const auto& [file, text] : rows) {
    CAPTURE(text);
    const std::string error = error_of([&] { read(file); });
    CHECK_MESSAGE(error.find(text) != error.npos, error);
    CHECK_MESSAGE(error.find(what + " f: ") == 0, error);
    CHECK(error.find('\n') == error.npos);
  }
}

}  // namespace

TEST_CASE("npy: files by NumPy are read exactly, and written again byte for byte") {
  const std::vector<double> signs{0, -1, 2, 3, -100, 5}, plain{0, 1, 2, 3, 100, 5};
  const struct {
    const char* name;
    DType dtype;
    Shape shape;
    std::vector<double> values;
    bool same = true;  // true: saving it reproduces the file byte for byte
  } rows[] = {
      {"f2", f16, {2, 3}, signs},
      {"f4", f32, {2, 3}, signs},
      {"f8", f64, {2, 3}, signs},
      {"i1", i8, {2, 3}, signs},
      {"i4", i32, {2, 3}, signs},
      {"i8", i64, {2, 3}, signs},
      {"u1", u8, {2, 3}, plain},
      {"b1", boolean, {2, 3}, {0, 1, 0, 1, 0, 1}},
      {"scalar", f32, {}, {2.5}},
      {"empty", i32, {0, 3}, {}},
      {"list", f32, {5}, count_up(5)},
      {"eight_dims", u8, {1, 1, 2, 1, 1, 1, 1, 1}, {0, 1}},
      {"big_f2", f16, {2, 3}, signs, false},
      {"big_f4", f32, {2, 3}, signs, false},
      {"big_f8", f64, {2, 3}, signs, false},
      {"big_i4", i32, {2, 3}, signs, false},
      {"big_i8", i64, {2, 3}, signs, false},
      {"fortran", i32, {2, 3, 4}, count_up(24), false},
      {"fortran_big", f64, {2, 3}, count_up(6), false},
      {"version_2", f32, {2, 3}, signs, false},
      {"version_3", f32, {2, 3}, signs, false},
  };
  TempDir dir;
  for (const char* name : {"c8", "c16", "big_c8", "big_c16"}) {
    CAPTURE(name);
    const std::string path = golden(str("npy/", name, ".npy"));
    const Tensor read = read_npy(path);
    CHECK(read.dtype() == (std::string(name).ends_with("8") ? c64 : c128));
    CHECK(real(read).to_vector<double>() == signs);
    CHECK(imag(read).to_vector<double>() == std::vector<double>{0, 0.5, 1, 1.5, 50, 2.5});
    save_npy(dir / "c.npy", read);
    CHECK((contents_of(dir / "c.npy") == contents_of(path)) == (name[0] == 'c'));
  }
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const std::string path = golden(str("npy/", row.name, ".npy"));
    const Tensor read = read_npy(path);
    CHECK(read.dtype() == row.dtype);
    CHECK(read.shape() == row.shape);
    CHECK(read.is_contiguous());
    CHECK(read.to_vector<double>() == row.values);
    save_npy(dir / "a.npy", read);
    CHECK((contents_of(dir / "a.npy") == contents_of(path)) == row.same);
    CHECK(read_npy(dir / "a.npy").to_vector<double>() == row.values);
  }
  save_npy(dir / "t.npy", read_npy(golden("npy/f4.npy")).t());  // strided tensors
  CHECK(read_npy(dir / "t.npy").to_vector<double>() == std::vector<double>{0, 3, -1, -100, 2, 5});
}

TEST_CASE("npy: headers of other writers, and types that are rejected by name") {
  const auto read = [](const std::string& file) { return parse_npy(as_bytes(file), "f"); };
  for (const std::string header : {"{'descr':'<f4','fortran_order':False,'shape':(2,1)}",
                                   "{\"shape\": (2L, 1L), \"fortran_order\": True, \"descr\": \"f4\"}  \n"})
    CHECK(read(npy_file(header, 8)).shape() == Shape{2, 1});
  CHECK(read(npy_file(dict("'|i1'", "(1,)"), 1)).dtype() == i8);
  const char* types = "expected bool, complex64, complex128, float16, float32, float64, int8, int32, int64 or uint8";
  const std::pair<const char*, const char*> rejected[] = {
      {"complex", "'<c32': complex256 (save it as complex64 or complex128)"},
      {"object", "'|O': Python objects, which"},
      {"structure", "a structure with fields"},
      {"text", "'<U4': text"},
      {"uint16", "'<u2': uint16 (save it as int32"},
  };
  for (const auto& [name, text] : rejected) {
    CHECK_ERROR(read_npy(golden(str("npy/bad_", name, ".npy"))), text);
    CHECK_ERROR(read_npy(golden(str("npy/bad_", name, ".npy"))), types);
    CHECK_ERROR(read_npy(golden(str("npy/bad_", name, ".npy"))), golden(str("npy/bad_", name, ".npy: ")));
  }
  TempDir dir;
  CHECK_ERROR(save_npy(dir / "a.npy", zeros({1}, {.dtype = bf16, .device = cpu})),
              "expected a dtype that NumPy has, got bf16; convert it with to(f32)");
  CHECK_ERROR(save_npy(dir / "a.npy", Tensor()), "expected a tensor on the cpu, got one undefined");
  CHECK(dir.files() == 0);
  CHECK_ERROR(read_npy(dir / "a.npy"), "No such file");
}

TEST_CASE("npy: damaged files are rejected, each with an error of one line") {
  const auto read = [](const std::string& file) { return parse_npy(as_bytes(file), "f"); };
  const std::string good = contents_of(golden("npy/f4.npy")), huge = "4611686018427387904";
  check_messages(
      read, "[npy]",
      {
          {"", "expected a header, got 0 bytes"},
          {contents_of(golden("npy/stored.npz")), "expected a file that starts with \\x93NUMPY, got a zip file: .npz?"},
          {"GIF89a nonsense", "expected a file that starts with \\x93NUMPY, got another"},
          {replaced(good, 6, "\4"), "expected version 1.0, 2.0 or 3.0, got 4.0"},
          {replaced(good, 7, "\1"), "expected version 1.0, 2.0 or 3.0, got 1.1"},
          {replaced(good, 8, "\xff\xff"), "expected a header of 65535 bytes, got 142 (is the file truncated?)"},
          {good.substr(0, good.size() - 1), "expected 24 bytes for f32(2, 3), got 23 (is the file truncated?)"},
          {good + "x", "expected 24 bytes for f32(2, 3), got 25"},
          {std::string("\x93NUMPY\2\0\0\0\x20\0", 12) + std::string(1 << 21, ' '),
           "expected a header of at most 1048576 bytes"},
          {npy_file(dict("'<f4'", "(2,)"), 0), "expected 8 bytes for f32(2), got 0 (is the file truncated?)"},
          {npy_file(dict("'<f4'", "(-1,)"), 4), "expected a size from 0 up at byte 51 of the header, got '-'"},
          {npy_file(dict("'<f4'", "(1.5,)"), 4), "expected ')' at byte 52 of the header, got '.'"},
          {npy_file(dict("'<f4'", "(" + huge + "0,)"), 4), "expected a size that fits in 63 bits"},
          {npy_file(dict("'<f4'", "(" + huge + ",)"), 4), "has more elements than 63 bits can count"},
          {npy_file(dict("'<f4'", "(4294967296, 4294967296, 0)"), 0), "has more elements than 63 bits can count"},
          {npy_file(dict("'<f4'", "(" + huge.substr(1) + ",)"), 4), "(is the file truncated?)"},
          {npy_file(dict("'<f4'", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 4), "expected at most 8 dims"},
          {npy_file(dict("'<f4'", "(1)"), 4), "expected a tuple"},
          {npy_file(dict("'<f4'", "[1]"), 4), "expected '(' at byte 50 of the header, got '['"},
          {npy_file(dict("'<f4'", "(1,)", "0"), 4), "expected True or False"},
          {npy_file(dict("<f4", "(1,)"), 4), "expected ''' at byte 10 of the header, got '<'"},
          {npy_file(dict("'<f4", "(1,)"), 4), "got '<f4, ': an unknown type"},
          {npy_file(dict("''", "(1,)"), 4), "an unknown type"},
          {npy_file("{'descr': '<f4', }", 4), "expected the keys descr, fortran_order and shape"},
          {npy_file("{'descr': '<f4', 'descr': '<f4'}", 4), "'descr' twice"},
          {npy_file("{'dtype': '<f4'}", 4),
           "expected the key descr, fortran_order or shape at byte 8 of the header, got 'dtype'"},
          {npy_file(dict("'<f4'", "(1,)") + "x", 4), "expected the end of the header"},
          {npy_file(dict("'|b1'", "(1,)") + std::string(1, '\0'), 1), "got byte 0"},
          {npy_file(dict("'|b1'", "(1,)"), 0) + "\2", "expected bools of 0 or 1, got 2 at 0"},
      });
  for (size_t n = 0; n < good.size(); ++n)
    CHECK_MESSAGE(error_of([&] { read(good.substr(0, n)); }).find("[npy] f: expected") == 0, n);
}

TEST_CASE("npz: files by NumPy are read, and written again byte for byte") {
  TempDir dir;
  for (const bool deflated : {false, true}) {
    const std::string path = golden(deflated ? "npy/deflated.npz" : "npy/stored.npz");
    const Named read = read_npz(path);
    CHECK(npz_names(path) == std::vector<std::string>{"a", "b/c", "é"});
    CHECK(read.size() == 3);
    CHECK(read[0].first == "a");
    CHECK(read[0].second.shape() == (deflated ? Shape{1000} : Shape{2, 3}));
    CHECK(read[0].second.to_vector<double>()[deflated ? 999 : 4] == (deflated ? 5 : -100));
    CHECK(read_npz(path, "b/c").item<int64_t>() == 7);
    CHECK(read_npz(path, "é").shape() == Shape{2, 0});
    CHECK_ERROR(read_npz(path, "b"), "no array \"b\" among: a, b/c, é");
    save_npz(dir / "a.npz", read, deflated);
    if (!deflated) CHECK(contents_of(dir / "a.npz") == contents_of(path));
    else CHECK(contents_of(dir / "a.npz").size() < 1000);  // compressed bytes depend on the version of the library
    for (const auto& [name, tensor] : read) {
      CAPTURE(name);
      const Tensor again = read_npz(dir / "a.npz", name);
      CHECK(again.dtype() == tensor.dtype());
      CHECK(again.to_vector<double>() == tensor.to_vector<double>());
    }
  }
  save_npz(dir / "none.npz", {});
  CHECK(read_npz(dir / "none.npz").empty());
  const Tensor one = zeros({1}, {.device = cpu});
  CHECK_ERROR(save_npz(dir / "b.npz", {{"x", one}, {"x", one}}), "the name \"x\" appears twice");
  CHECK_ERROR(save_npz(dir / "b.npz", {{"x", one}, {"y", Tensor()}}), "b.npz: \"y\": expected a tensor on the cpu");
  CHECK(dir.list() == "a.npz none.npz");
}

TEST_CASE("npz: a member beyond 4 GiB, in a sparse file") {
  TempDir dir;
  save_npz(dir / "a.npz", {{"a", Tensor::from({1.f, 2.f}, {2}).to(cpu)}});
  const std::string small = contents_of(dir / "a.npz");
  ZipMember member = zip_members(as_bytes(small), "a")[0];
  const int64_t hole = int64_t(5) << 30, size = member.data + member.bytes;
  member.offset = hole;
  {
    std::ofstream file(dir / "big.npz", std::ios::binary);
    file.seekp(hole);
    file << small.substr(0, size_t(size)) << zip_directory({member}, hole + size);
  }
  CHECK(read_npz(dir / "big.npz", "a").to_vector<double>() == std::vector<double>{1, 2});
  const std::string directory = zip_directory({member}, hole + size);
  check_messages([](const std::string& file) { return parse_npz(as_bytes(file), "f"); }, "[npz]",
                 {
                     {directory, "expected the 64-bit end of a directory at byte 5368709"},
                 });
}

TEST_CASE("npz: damaged files are rejected, each with an error of one line") {
  const auto read = [](const std::string& file) { return parse_npz(as_bytes(file), "f"); };
  const std::string stored = contents_of(golden("npy/stored.npz")), deflated = contents_of(golden("npy/deflated.npz"));
  // A local header has 30 bytes, the name "a.npy" 5, zip64's extra field 20. `end`: the end record of 22 bytes. In an
  // entry of the directory: +8 flags, +10 method, +16 CRC-32, +20 and +24 sizes, +42 offset of the member.
  const size_t data = 30 + 5 + 20, end = stored.size() - 22, entry = stored.find("PK\1\2"),
               last = stored.rfind("PK\1\2");
  const size_t deflated_entry = deflated.find("PK\1\2");
  std::string flipped = deflated;
  flipped[data + 4] = char(flipped[data + 4] ^ 0x10);
  TempDir dir;
  const Tensor one = zeros({1}, {.device = cpu});
  save_npz(dir / "a.npz", {{"a", one}, {"b", one}});
  std::string twice = contents_of(dir / "a.npz");
  for (size_t at = twice.find("b.npy"); at != twice.npos; at = twice.find("b.npy", at)) twice[at] = 'a';
  check_messages(
      read, "[npz]",
      {
          {"", "expected a zip file, with a directory at its end, found none in 0 bytes"},
          {contents_of(golden("npy/f4.npy")), "expected a zip file, with a directory at its end"},
          {stored.substr(0, entry), "expected a zip file, with a directory at its end"},
          {stored + "x", "expected a zip file, with a directory at its end"},
          {stored.substr(entry), "expected a directory that ends at byte"},
          {replaced(stored, end + 4, "\1"), "expected a zip file in one part"},
          {replaced(stored, end + 10, "\4"), "expected 4 members as the directory says, got 3"},
          {replaced(stored, end + 12, "\1"), "expected a directory that ends at byte"},
          {replaced(stored, entry, "x"), "entry 0 of the directory: expected an entry at byte"},
          {replaced(stored, last + 29, "\xff"), "entry 2 of the directory: expected at most"},
          {replaced(stored, entry + 8, "\1"), "member \"a.npy\": expected plain data, got encrypted data"},
          {replaced(stored, entry + 10, "\x0e"), "expected method 0 (stored) or 8 (deflated), got 14"},
          {replaced(stored, entry + 16, "\xff\xff\xff\xff"),
           "member \"a.npy\": expected the CRC-32 4294967295 stored in the file"},
          {replaced(stored, data + 130, "\7"), "(they are damaged)"},
          {replaced(stored, entry + 20, "\x99"), "expected sizes that match, got 153 bytes in the file for 152"},
          {replaced(stored, entry + 20, std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8)),
           "expected 2 64-bit sizes, found none"},
          {replaced(stored, entry + 20, std::string("\0\1\0\0\0\1\0\0", 8)), "overlap"},
          {replaced(stored, entry + 20, std::string("\0\0\1\0\0\0\1\0", 8)),
           "expected 65536 bytes at 55, where the directory leaves"},
          {replaced(stored, entry + 42, "\1"), "member \"a.npy\": expected its header at byte 1, found none"},
          {replaced(stored, 30, "z"), "expected a header of that name at byte 0, got another"},
          {replaced(stored, entry + 47, "xx.x"), "got another"},
          {replaced(deflated, deflated_entry + 24, std::string("\0\0\0\x7f", 4)), "expected sizes that match"},
          {replaced(deflated, deflated_entry + 24, "\x81"), "expected 4000 bytes for f32(1000), got 4097"},
          {replaced(deflated, deflated_entry + 20, "\x20"), "\"a.npy\": "},
          {replaced(deflated, data, "\xff"), "deflated data are corrupt: invalid block type"},
          {flipped, "\"a.npy\": "},
          {twice, "member \"a.npy\" appears twice"},
      });
  CHECK(read(replaced(stored, end + 20, "\3") + "abc").size() == 3);  // a comment of 3 bytes at the end is allowed
  for (const std::string& file : {stored, deflated})
    for (size_t n = 0; n < file.size(); ++n)
      CHECK_MESSAGE(error_of([&] { read(file.substr(0, n)); }).find("[npz] f: ") == 0, n);
}
