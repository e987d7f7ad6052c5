// Image sets: IDX (plain, gzip, hostile), MNIST folders, CIFAR-10, drawn digits.
// A number in a test's name is a row of docs/faults.md.
#include <zlib.h>

#include "data/files.h"
#include "data/images.h"
#include "data/loader.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string header(int code, const std::vector<uint32_t>& sizes) {
  std::string text{0, 0, char(code), char(sizes.size())};
  for (const uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) text += char(size >> shift);
  return text;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = uInt(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Tensor parse(const std::string& file) { return parse_idx(as_bytes(file), "f"); }

}  // namespace

TEST_CASE("idx of every dtype, plain and gzip") {
  const std::string six{1, 2, 3, 4, 5, char(250)}, number{0x3f, char(0x80), 0, 0, char(0xc0), 0, 0, 0};
  for (const bool zipped : {false, true}) {
    const auto file = [&](const std::string& text) { return parse(zipped ? gzip(text) : text); };
    CHECK(file(header(8, {2, 3}) + six).shape() == Shape{2, 3});
    CHECK(file(header(8, {2, 3}) + six).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4, 5, 250});
    CHECK(file(header(9, {6}) + six).to_vector<int64_t>().back() == -6);
    CHECK(file(header(13, {2}) + number).to_vector<double>() == std::vector<double>{1, -2});
    CHECK(file(header(12, {1}) + std::string{0, 0, 1, 2}).item<int64_t>() == 258);
    CHECK(file(header(8, {0, 3})).numel() == 0);
  }
}

TEST_CASE("idx 42: hostile idx files") {
  const std::string good = header(8, {2, 3}) + "123456";
  std::string wrong_sum = gzip(good), bomb = gzip(header(8, {60, 60}) + std::string(1 << 20, '\0'));
  wrong_sum[wrong_sum.size() - 6] ^= 1;
  const std::pair<std::string, const char*> rows[] = {
      {"", "fewer than 4 bytes"},
      {"PK\3\4", "expected a file that starts with 0 0, got 80 75"},
      {header(11, {3}) + "123456", "expected dtype 8 (u8)"},
      {header(8, {}), "expected 1 to 8 dims, got 0"},
      {header(8, {1, 1, 1, 1, 1, 1, 1, 1, 1}) + "1", "expected 1 to 8 dims, got 9"},
      {header(8, {2, 3}).substr(0, 8), "expected a header with 2 sizes, got 1"},
      {header(8, {1u << 31, 1u << 31, 4}), "expected at most 1073741824 bytes"},
      {header(8, {0xffffffff, 0xffffffff, 0xffffffff}), "expected at most 1073741824 bytes"},
      {header(8, {1000, 1000}), "expected 1000000 bytes for shape (1000, 1000), got at most 0"},
      {good.substr(0, good.size() - 1), "expected 6 bytes for shape (2, 3), got at most 5"},
      {good + "7", "expected 18 bytes as the header says, got more: 19"},
      {gzip(good + "7"), "expected 18 bytes as the header says, got more"},
      {bomb, "as the header says, got more"},
      {gzip(header(8, {100, 100})), "expected 10000 bytes for shape (100, 100), got 0"},
      {gzip(header(8, {30000, 30000})), "(is the file truncated?)"},
      {wrong_sum, "gzip data is corrupt: incorrect data check"},
      {gzip(good) + "x", "expected the end of the file after its gzip data, got 1 more bytes"},
      {"\x1f\x8b nonsense", "gzip data is corrupt"},
  };
  for (const auto& [file, expected] : rows) {
    CHECK_ERROR(parse(file), expected);
    CHECK_ERROR(parse(file), "[idx] f: ");
  }
  for (const std::string& full : {good, gzip(good)}) {
    for (size_t n = 0; n < full.size(); ++n) CHECK_THROWS_AS(parse(full.substr(0, n)), Error);
    CHECK(parse(full).numel() == 6);
  }
}

TEST_CASE("a folder of MNIST") {
  TempDir dir;
  const std::string folder = dir.path.string();
  CHECK_ERROR(load_mnist(folder, true), "expected train-images-idx3-ubyte or train-images-idx3-ubyte.gz in " + folder);
  dir.write("train-images-idx3-ubyte", header(8, {2, 1, 2}) + std::string{0, char(255), 51, 102});
  dir.write("train-labels-idx1-ubyte.gz", gzip(header(8, {2}) + std::string{7, 0}));
  const auto train = load_mnist(folder, true);
  CHECK(train.inputs().shape() == Shape{2, 1, 1, 2});
  CHECK(train.inputs().to_vector<double>()[1] == 1);
  CHECK(train.inputs().to_vector<double>()[2] == doctest::Approx(0.2));
  CHECK(train.targets().to_vector<int64_t>() == std::vector<int64_t>{7, 0});
  CHECK_ERROR(load_mnist(folder, false), "t10k-images-idx3-ubyte");
  dir.write("train-labels-idx1-ubyte", header(8, {3}) + std::string{7, 0, 1});
  CHECK_ERROR(load_mnist(folder, true), "expected 2 labels, one for each image, got 3");
  dir.write("train-labels-idx1-ubyte", header(8, {2}) + std::string{7, 10});
  CHECK_ERROR(load_mnist(folder, true), "expected labels from 0 to 9, got 10 for sample 1");
  dir.write("train-images-idx3-ubyte", header(8, {2}) + std::string{7, 1});
  CHECK_ERROR(load_mnist(folder, true), "expected u8 images (N, H, W), got u8(2)");
}

TEST_CASE("CIFAR-10") {
  TempDir dir;
  const std::string folder = dir.path.string(), record = '\3' + std::string(1024, '\0') + std::string(1024, char(51)) +
                                                         std::string(1024, char(255));
  const auto set = read_cifar10(dir.write("test_batch.bin", record + '\1' + record.substr(1)));
  CHECK(set.inputs().shape() == Shape{2, 3, 32, 32});
  CHECK(set.inputs()[1][1].to_vector<double>()[5] == doctest::Approx(0.2));
  CHECK(set.inputs()[0][2].to_vector<double>()[1023] == 1);
  CHECK(set.targets().to_vector<int64_t>() == std::vector<int64_t>{3, 1});
  CHECK(load_cifar10(folder, false).size() == 2);
  CHECK_ERROR(load_cifar10(folder, true), "expected data_batch_1.bin in " + folder);
  for (int i = 1; i <= 5; ++i) dir.write("data_batch_" + std::to_string(i) + ".bin", record);
  CHECK(load_cifar10(folder, true).size() == 5);
  CHECK_ERROR(read_cifar10(dir.write("bad", record.substr(1))), "expected records of 3073 bytes");
  CHECK_ERROR(read_cifar10(dir.write("bad", "")), "got 0 bytes");
  CHECK_ERROR(read_cifar10(dir.write("bad", '\12' + record.substr(1))),
              "expected labels from 0 to 9, got 10 for record 0");
}

TEST_CASE("drawn digits depend on seed and index only") {
  const SyntheticDigits digits(30, 1), other(30, 2);
  const auto all = to_tensors(digits);
  CHECK(all.inputs().shape() == Shape{30, 1, 28, 28});
  CHECK(all.targets().to_vector<int64_t>()[17] == 7);
  CHECK(digits.get(17).target.item() == 7);
  CHECK(digits.get(17).input.to_vector<float>() == all.inputs()[17].to_vector<float>());
  CHECK(digits.get(17).input.to_vector<float>() != other.get(17).input.to_vector<float>());
  CHECK(digits.get(7).input.to_vector<float>() != digits.get(17).input.to_vector<float>());
  for (int64_t i = 0; i < 30; ++i) {
    double ink = 0;
    for (const float grey : all.inputs()[i].to_vector<float>()) {
      CHECK((grey >= 0 && grey <= 1));
      ink += grey;
    }
    CHECK(ink > 20);
    CHECK(ink < 300);
  }
  CHECK_ERROR(digits.get(30), "[SyntheticDigits] index 30 is outside the dataset of 30 samples");
}
