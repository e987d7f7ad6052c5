// safetensors: round trips, hostile headers, and what is not written. They are written with write_atomically(), which
// files_test.cpp interrupts at every operation.
#include <cstring>

#include "data/safetensors.h"
#include "tensor/complex.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

/// The 8 bytes of a header's length.
std::string number(uint64_t n) { return {reinterpret_cast<const char*>(&n), 8}; }
std::string file_of(const std::string& header, const std::string& data) {
  return number(header.size()) + header + data;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.numel() == 0 || std::memcmp(a.contiguous().raw_data(), b.contiguous().raw_data(),
                                        size_t(a.numel() * size_of(a.dtype()))) == 0);
}

}  // namespace

TEST_CASE("safetensors: complex numbers, which the format has of one width") {
  TempDir dir;
  const Tensor z = Tensor::from<std::complex<float>>({{1, 2}, {-3, 0.5f}});
  save_safetensors(dir / "z", {{"a", ones({1})}, {"z", z}});
  CHECK(equal(SafeTensors::open(dir / "z").tensor("z"), z));
  CHECK_ERROR(save_safetensors(dir / "w", {{"w", z.to(c128)}}), "no name for c128");
}

TEST_CASE("tensors of every dtype, odd shapes and views come back bit for bit") {
  TempDir dir;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const DType dtype : {u8, f32, f64, f16, bf16, i64, i32, i8})
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{1}, Shape{7}, Shape{3, 5}})
      tensors.emplace_back(str(dtype, shape), arange(numel_of(shape)).to(dtype).view(shape));
  tensors.emplace_back("bool", Tensor::from({true, false, true}));
  tensors.emplace_back("é \"quoted\"\n", arange(12).view({3, 4}).t());
  const Metadata metadata{{"format", "pt"}, {"step", "12\t"}};
  save_safetensors(dir / "a.safetensors", tensors, metadata);

  const SafeTensors file = SafeTensors::open(dir / "a.safetensors");
  CHECK(file.metadata() == metadata);
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK(same_bytes(file.tensor(name), tensor));
    if (tensor.numel())
      CHECK(reinterpret_cast<uintptr_t>(file.tensor(name).raw_data()) % size_t(size_of(tensor.dtype())) == 0);
  }
  CHECK(file.contains("bool"));
  CHECK_ERROR(file.tensor("none"), "no tensor \"none\" among");
}

TEST_CASE("a tensor keeps the mapping alive, and writing to it does not reach the file") {
  TempDir dir;
  save_safetensors(dir / "a", {{"x", Tensor::from({1.f, 2.f})}});
  const Tensor x = SafeTensors::open(dir / "a").tensor("x");
  save_safetensors(dir / "a", {{"x", Tensor::from({3.f, 4.f})}});
  CHECK(x.data<float>()[1] == 2);
  x.data<float>()[0] = 9;
  CHECK(SafeTensors::open(dir / "a").tensor("x").data<float>()[0] == 3);
}

TEST_CASE("tensors at odd addresses are copied") {
  TempDir dir;
  std::string data(9, '\1');
  const float value = 2.5f;
  std::memcpy(data.data() + 1, &value, 4);
  const auto path = dir.write(
      "a",
      file_of(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}} )",
          data));
  CHECK(SafeTensors::open(path).tensor("f").data<float>()[0] == 2.5f);
}

TEST_CASE("a header whose metadata are null has none") {
  TempDir dir;
  const auto path = dir.write(
      "a",
      file_of(R"({"__metadata__":null,"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", std::string(1, '\7')));
  CHECK(SafeTensors::open(path).metadata().empty());
  CHECK(SafeTensors::open(path).tensor("b").item() == 7);
}

TEST_CASE("hostile files are refused") {
  TempDir dir;
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::string a = entry("a", "U8", "[4]", "[0,4]"), four = "1234";
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  const std::pair<std::string, const char*> rows[] = {
      {"", "expected at least 8 bytes, got 0"},
      {"1234567", "expected at least 8 bytes, got 7"},
      {number(0), "expected a header that starts with '{'"},
      {number(100) + "{}", "expected a header of 100 bytes, got a file of 10 bytes"},
      {number(uint64_t(1) << 63) + "{}", "expected a header of at most 100000000 bytes"},
      {number(100000001) + "{}", "is this a safetensors file?"},
      {file_of("[]", ""), "starts with '{'"},
      {file_of(" {}", ""), "starts with '{'"},
      {file_of("{\"\xff\":1}", ""), "syntax error"},
      {file_of("{} x", ""), "syntax error"},
      {file_of(std::string("{}\0\0\0", 5), ""), "zero byte"},
      {file_of("{}", "trailing"), "expected 0 bytes of data, got 8"},
      {file_of(deep, ""), "expected"},
      {file_of("{" + a + "," + a + "}", four), "appears twice"},
      {file_of(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "appears twice"},
      {file_of(R"({"__metadata__":{},"__metadata__":{}})", ""), "appears twice"},
      {file_of(R"({"__metadata__":{"a":1}})", ""), "expected a string"},
      {file_of(R"({"__metadata__":{"a":null}})", ""), "expected a string, got null"},
      {file_of(R"({"__metadata__":null,"__metadata__":null})", ""), "got null"},
      {file_of(R"({"a":null})", ""), "got null"},
      {file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four), "dtype appears twice"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4]}})", four), "expected dtype, shape and data_offsets"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", four), "unknown key"},
      {file_of(R"({"a":4})", four), "expected an object"},
      {file_of("{" + entry("a", "F8_E4M3", "[4]", "[0,4]") + "}", four), "expected dtype F32"},
      {file_of("{" + entry("a", "U8", "4", "[0,4]") + "}", four), "expected a list"},
      {file_of("{" + entry("a", "U8", "[[4]]", "[0,4]") + "}", four), "levels"},
      {file_of("{" + entry("a", "U8", "[-4]", "[0,4]") + "}", four), "whole numbers"},
      {file_of("{" + entry("a", "U8", "[4.0]", "[0,4]") + "}", four), "whole numbers"},
      {file_of("{" + entry("a", "U8", "[\"4\"]", "[0,4]") + "}", four), "whole numbers"},
      {file_of("{" + entry("a", "U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]") + "}", four), "at most 8 dims"},
      {file_of("{" + entry("a", "U8", "[4]", "[0,4,4]") + "}", four), "expected 2 data_offsets, got 3"},
      {file_of("{" + entry("a", "U8", "[4]", "[4,0]") + "}", four), "got data_offsets [4, 0]"},
      {file_of("{" + entry("a", "U8", "[4]", "[0,5]") + "}", "12345"), "expected 4 bytes for u8(4)"},
      {file_of("{" + entry("a", "U8", "[8]", "[0,8]") + "}", four), "is the file truncated?"},
      {file_of("{" + entry("a", "U8", "[2]", "[2,4]") + "}", four), "a gap"},
      {file_of("{" + entry("a", "U8", "[3]", "[0,3]") + "," + entry("b", "U8", "[2]", "[2,4]") + "}", four), "overlap"},
      {file_of("{" + a + "," + entry("z", "U8", "[0]", "[2,2]") + "}", four), "overlap"},
      {file_of("{" + entry("a", "U8", "[4294967296,4294967296,4]", "[0,4]") + "}", four), "63 bits"},
      {file_of("{" + entry("a", "F32", "[4611686018427387905]", "[0,4]") + "}", four), "63 bits"},
      {file_of("{" + entry("a", "U8", "[18446744073709551615]", "[0,4]") + "}", four), "63 bits"},
      {file_of("{" + a + "}", "123"), "is the file truncated?"},
  };
  for (const auto& [file, expected] : rows) {
    const auto path = dir.write("bad", file);
    CHECK_ERROR(SafeTensors::open(path), expected);
    CHECK_ERROR(SafeTensors::open(path), path);
  }
  const auto path =
      dir.write("bool", file_of("{" + entry("a", "BOOL", "[4]", "[0,4]") + "}", std::string("\0\1\2\1", 4)));
  CHECK_ERROR(SafeTensors::open(path).tensor("a"), "expected 0 or 1, got 2 at 2");
  CHECK_NOTHROW(
      SafeTensors::open(dir.write("zero", file_of("{" + entry("z", "U8", "[0]", "[0,0]") + "," + a + "}", four))));
  CHECK_NOTHROW(SafeTensors::open(dir.write("none", file_of("{}   ", ""))));
}

TEST_CASE("every truncation of a file is refused") {
  TempDir dir;
  save_safetensors(dir / "a", {{"x", arange(5)}, {"y", Tensor::from({1.f})}}, {{"k", "v"}});
  const std::string full = read_file(dir / "a", 10000);
  for (size_t n = 0; n < full.size(); ++n) CHECK_THROWS_AS(parse_safetensors(as_bytes(full).first(n), "cut"), Error);
  CHECK_NOTHROW(parse_safetensors(as_bytes(full), "whole"));
}

TEST_CASE("a file that would not load is not written") {
  TempDir dir;
  const Tensor x = arange(3);
  save_safetensors(dir / "a", {{"x", x}});
  CHECK_ERROR(save_safetensors(dir / "a", {{"x", x}, {"x", x}}), "appears twice");
  CHECK_ERROR(save_safetensors(dir / "a", {{"\xff", x}}), "syntax error");
  CHECK_ERROR(save_safetensors(dir / "a", {{"__metadata__", x}}), "cannot be called __metadata__");
  CHECK_ERROR(save_safetensors(dir / "a", {{"u", Tensor()}}), "undefined");
  CHECK(SafeTensors::open(dir / "a").names() == std::vector<std::string>{"x"});
}
