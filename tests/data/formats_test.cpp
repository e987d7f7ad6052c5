// CSV, JSON Lines and WAV: reading, writing and damaged files.
#include <cmath>
#include <limits>

#include "data/csv.h"
#include "data/files.h"
#include "data/json_lines.h"
#include "data/npy.h"
#include "data/wav.h"
#include "tensor/ops.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string wav_file(const std::string& chunks) {
  std::string text = "RIFF";
  for (int i = 0; i < 4; ++i) text += char((chunks.size() + 4) >> (8 * i));
  return text + "WAVE" + chunks;
}
/// A chunk "fmt ": format, channels, 8000 frames/s, bytes per frame, bits per sample; then `more`.
std::string fmt_chunk(int format, int channels, int block, int bits, const std::string& more = "") {
  std::string text = "fmt " + std::string{char(16 + more.size()), 0, 0, 0};
  for (const int value : {format, channels, 8000, 0, 0, 0, block, bits}) text += {char(value & 255), char(value >> 8)};
  return text + more;
}
std::string data_chunk(const std::string& bytes) { return "data" + std::string{char(bytes.size()), 0, 0, 0} + bytes; }

std::string same_length(std::string text, size_t at, const std::string& bytes) {
  return text.replace(at, bytes.size(), bytes);
}

}  // namespace

TEST_CASE("csv: numbers into a tensor") {
  const std::string text =
      "\xef\xbb\xbf"
      "id,\"a, b\",text,\"say \"\"x\"\"\"\r\n1, 2.5 ,one,-3e2\r\n\r\n+4,\"5\",\"two\nlines\",inf";
  const Csv some = parse_csv(text, "f", {.columns = {"say \"x\"", "id", "a, b"}});
  CHECK(some.columns == std::vector<std::string>{"say \"x\"", "id", "a, b"});
  CHECK(some.values.dtype() == f32);
  CHECK(some.values.shape() == Shape{2, 3});
  CHECK(some.values.to_vector<double>() == std::vector<double>{-300, 1, 2.5, INFINITY, 4, 5});
  CHECK(some.column("a, b").to_vector<double>() == std::vector<double>{2.5, 5});
  CHECK_ERROR(some.column("x"), "expected one of the columns say \"x\", id, a, b, got \"x\"");

  const Csv plain = parse_csv("1;2\n3;4\n", "f", {.delimiter = ';', .header = false, .dtype = i64});
  CHECK(plain.columns.empty());
  CHECK(plain.values.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(parse_csv("9223372036854775807", "f", {.header = false, .dtype = i64}).values.item<int64_t>() == INT64_MAX);
  CHECK(parse_csv("0.1", "f", {.header = false, .dtype = f64}).values.item() == 0.1);
  CHECK(parse_csv("a,b", "f").values.shape() == Shape{0, 2});
  const auto gaps = parse_csv("a,b\n,1\n\"\", \n", "f", {.empty_is_nan = true}).values.to_vector<double>();
  CHECK(std::isnan(gaps[0]));
  CHECK(gaps[1] == 1);
  CHECK((std::isnan(gaps[2]) && std::isnan(gaps[3])));

  TempDir dir;
  CHECK(read_csv(dir.write("a.csv", "x\ty\n1\t2\n"), {.delimiter = '\t'}).column("y").item() == 2);
  CHECK_ERROR(read_csv(dir.write("b.csv", "x\n1\nz\n")),
              "[csv] " + dir / "b.csv" + ":3: column \"x\": expected a number, got \"z\"");
}

TEST_CASE("csv: lines of blanks are left out, as empty ones are") {
  CHECK(parse_csv("a,b\n1,2\n \n3,4\n", "f").values.to_vector<double>() == std::vector<double>{1, 2, 3, 4});
  CHECK(parse_csv(" \t\r\n\na\n1\n\t \n2\n  ", "f").values.to_vector<double>() == std::vector<double>{1, 2});
  CHECK(parse_csv("1\n \n2", "f", {.header = false, .empty_is_nan = true}).values.numel() == 2);
  // If tabs are the delimiter, a lone tab is a record of two empty fields.
  const CsvOptions tabs{.delimiter = '\t', .header = false, .empty_is_nan = true};
  CHECK(parse_csv("1\t2\n \t\n \n", "f", tabs).values.shape() == Shape{2, 2});
  CHECK_ERROR(parse_csv("a,b\n1,2\n \n3\n", "f"), "[csv] f:4: expected 2 fields as in line 1, got 1");
}

TEST_CASE("csv 42: what is refused, with its line") {
  const CsvOptions bare{.header = false}, whole{.header = false, .dtype = i64};
  const struct {
    std::string text;
    CsvOptions options;
    const char* message;
  } rows[] = {
      {"", {}, ": expected at least one line, got an empty file"},
      {"\n\r\n", {}, ": expected at least one line, got an empty file"},
      {"a,b\n1,2\n1,2,3\n", {}, ":3: expected 2 fields as in line 1, got 3"},
      {"\na,b\n\n1,2\n1\n", {}, ":5: expected 2 fields as in line 2, got 1"},
      {"\"a\nb\"\n1\n1,2\n", {}, ":4: expected 1 fields as in line 1, got 2"},
      {"a,b\n1,2,\n", {}, ":2: expected 2 fields as in line 1, got 3"},
      {"1,x", bare, ":1: field 2: expected a number, got \"x\""},
      {"1,\"x\ny\"", bare, ":1: field 2: expected a number, got \"x?y\""},
      {"1,1.5.2", bare, ":1: field 2: expected a number, got \"1.5.2\""},
      {"1,+-2", bare, ":1: field 2: expected a number, got \"+-2\""},
      {"1,0x10", bare, ":1: field 2: expected a number, got \"0x10\""},
      {"a,b\n1,\n", {}, ":2: column \"b\": expected a number, got an empty field (empty_is_nan reads it as NaN)"},
      {"1.0", whole, ":1: field 1: expected a whole number, got \"1.0\""},
      {"9223372036854775808", whole, ":1: field 1: expected a number that fits i64, got 9223372036854775808"},
      {"1e39", bare, ":1: field 1: expected a number that fits f32, got 1e39"},
      {"1e999", bare, ":1: field 1: expected a number that fits f32, got 1e999"},
      {"1\n\"2\n3", bare, ":2: expected a closing quote for field 1, got the end of the file"},
      {"1,\"2\"3", bare, ":1: expected ',' or the end of the line after the quote that closes field 2, got '3'"},
      {"1\r2", bare, ":1: expected lines that end in \\n or \\r\\n, got \\r alone"},
      {"a,b\n1,2", {.columns = {"c"}}, ":1: expected one of the columns a, b, got \"c\""},
      {"a,a\n1,2", {.columns = {"a"}}, ":1: expected one column \"a\", got several"},
      {"1,2", {.header = false, .columns = {"a"}}, ": expected a header to find columns by name"},
      {"1", {.delimiter = '"'}, ": expected a delimiter other than a quote, the end of a line or 0, got byte 34"},
      {"1", {.dtype = i32}, ": expected dtype f32, f64 or i64, got i32"},
      {"1", {.empty_is_nan = true, .dtype = i64}, ": expected f32 or f64 with empty_is_nan"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK_ERROR(parse_csv(row.text, "f", row.options), std::string("[csv] f") + row.message);
  }
}

TEST_CASE("json lines: one by one, with the numbers of lines") {
  TempDir dir;
  const std::string long_text(100'000, 'x');  // longer than the read buffer
  JsonLines lines(dir.write("a.jsonl", "{\"a\": 1}\r\n\n  \n[2, \"" + long_text + "\"]\nnull\n\"last\""));
  CHECK(lines.next()->at("a").as_int() == 1);
  CHECK(lines.line() == 1);
  CHECK(lines.next()->as_array()[1].as_string() == long_text);
  CHECK(lines.line() == 4);
  CHECK(lines.next()->is_null());
  CHECK(lines.next()->as_string() == "last");
  CHECK(lines.line() == 6);
  CHECK(!lines.next());
  CHECK(!lines.next());
  CHECK(!JsonLines(dir.write("empty", "")).next());
  JsonLines python(dir.write("p.jsonl", "{\"x\": NaN, \"id\": 18446744073709551615}\n"));  // pandas writes this
  const auto row = python.next();
  CHECK(std::isnan(row->at("x").as_number()));
  CHECK(row->at("id").as_number() == 0x1p64);

  std::string many;
  for (int i = 0; i < 30'000; ++i) many += std::to_string(i) + "\n";
  JsonLines numbers(dir.write("many", many));
  int64_t sum = 0;
  while (const auto value = numbers.next()) sum += value->as_int() - numbers.line() + 1;
  CHECK(sum == 0);
  CHECK(numbers.line() == 30'000);

  const struct {
    std::string text;
    const char* message;
  } rows[] = {
      {"{}\n{\"a\": 1, \"a\": 2}\n", ":2:13: key \"a\" appears twice"},
      {"1\n\n[1, 2\n", ":3:6: syntax error"},
      {"1\n1 2\n", ":2:3: syntax error"},
      {"1\n" + std::string(1, '\0'), ":2:1: unexpected zero byte"},
      {"1\n[[[1]]]", ":2:4: nested deeper than 2 levels"},
      {"1\n\"" + std::string(70, 'x') + "\"\n", ":2: expected a line of at most 64 bytes, got more"},
      {"1\n\"" + std::string(200'000, 'x'), ":2: expected a line of at most 64 bytes, got more"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.message);
    const std::string path = dir.write("bad.jsonl", row.text);
    JsonLines bad(path, {.bytes = 64, .depth = 2});
    CHECK(bad.next());
    CHECK_ERROR(bad.next(), path + row.message);
  }
  CHECK_ERROR(JsonLines(dir / "none"), "No such file");
}

TEST_CASE("wav: files by soundfile are read as soundfile reads them") {
  TempDir dir;
  for (const auto& [name, expected] : read_npz(golden("wav/expected.npz"))) {
    CAPTURE(name);
    const std::string path = golden("wav/" + name + ".wav");
    const Wav wav = read_wav(path);
    CHECK(wav.rate == 8000);
    CHECK(wav.samples.dtype() == f32);
    CHECK(wav.samples.shape() == expected.shape());
    CHECK(wav.samples.to_vector<float>() == expected.to_vector<float>());
    CHECK(wav.floating == (name[0] == 'f'));
    CHECK(std::to_string(wav.bits) == name.substr(1, name.find('_') - 1));
    save_wav(dir / "f.wav", wav.samples, 44100, WavFormat::float32);
    CHECK(read_wav(dir / "f.wav").samples.to_vector<float>() == expected.to_vector<float>());
    CHECK(read_wav(dir / "f.wav").rate == 44100);
    save_wav(dir / "i.wav", wav.samples, 8000);
    const auto rounded = read_wav(dir / "i.wav").samples.to_vector<float>();
    for (size_t i = 0; i < rounded.size(); ++i)
      CHECK(std::abs(rounded[i] - expected.to_vector<float>()[i]) <= (rounded[i] > 0.99 ? 1.f : 0.5f) / 32768);
    if (name == "i16_1" || name == "i16_2") CHECK(dir.read("i.wav") == read_file(path, 1000));
  }
  CHECK_ERROR(read_wav(golden("wav/bad_mu_law.wav")), "expected format 1 (PCM) or 3 (float), got 7 (mu-law)");

  save_wav(dir / "loud.wav", Tensor::from({2.f, -2.f, 1.f, -1.f, 0.5f / 32768, 1.5f / 32768}, {6, 1}).to(cpu), 8000);
  std::vector<double> clipped = read_wav(dir / "loud.wav").samples.to_vector<double>();
  for (double& value : clipped) value *= 32768;
  CHECK(clipped == std::vector<double>{32767, -32768, 32767, -32768, 0, 2});
  save_wav(dir / "none.wav", zeros({2, 0}, {.device = cpu}), 8000);
  CHECK(read_wav(dir / "none.wav").samples.shape() == Shape{2, 0});
  const Tensor two = zeros({2, 3}, {.device = cpu});
  CHECK_ERROR(save_wav(dir / "x", two[0], 8000), "expected f32 samples (channels, frames) on the cpu, got f32(3)");
  CHECK_ERROR(save_wav(dir / "x", two.to(f64), 8000), "got f64(2, 3) on cpu");
  CHECK_ERROR(save_wav(dir / "x", two, 0), "expected a rate from 1 to 268435455, got 0");
  CHECK_ERROR(save_wav(dir / "x", zeros({0, 1}, {.device = cpu}), 1), "expected 1 to 8191 channels, got 0");
  CHECK_ERROR(save_wav(dir / "x", full({2, 3}, NAN, {.device = cpu}), 1),
              "expected numbers, got NaN in channel 0, frame 0");
}

TEST_CASE("wav: a file written into a pipe, without a size in the header, is read to the end") {
  const std::string one = fmt_chunk(1, 1, 2, 16),
                    all = wav_file(one + data_chunk(std::string("\0\0d\0\0\x80\xff\x7f", 8)));
  const std::vector<double> wanted{0, 100 / 32768., -1, 32767 / 32768.};
  // sizes as ffmpeg writes them to a pipe, and sizes that were never filled in
  for (const char byte : {'\xff', '\0'}) {
    const std::string sizes(4, byte), stream = same_length(same_length(all, 4, sizes), 40, sizes);
    CHECK(parse_wav(as_bytes(stream), "f").samples.to_vector<double>() == wanted);
    // half a frame at the end is ignored
    CHECK(parse_wav(as_bytes(stream + "x"), "f").samples.to_vector<double>() == wanted);
    CHECK(parse_wav(as_bytes(same_length(all, 4, sizes)), "f").samples.to_vector<double>() == wanted);
    CHECK(parse_wav(as_bytes(stream.substr(0, 44)), "f").samples.numel() == 0);
    for (size_t n = 0; n < 44; ++n) CHECK_THROWS_AS(parse_wav(as_bytes(stream.substr(0, n)), "f"), Error);
  }
  // If the RIFF size is known, chunks that exceed the file are errors.
  CHECK_ERROR(parse_wav(as_bytes(same_length(all, 40, "\xff\xff\xff\xff")), "f"), "is the file truncated?");
  CHECK(parse_wav(as_bytes(same_length(all, 40, std::string(4, '\0'))), "f").samples.numel() == 0);
}

TEST_CASE("wav 42: damaged files") {
  const std::string one = fmt_chunk(1, 1, 2, 16), good = wav_file(one + data_chunk("12345678"));
  const std::string guid("\x16\0\x10\0\0\0\0\0\1\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71", 24);
  CHECK(parse_wav(as_bytes(good), "f").samples.shape() == Shape{1, 4});
  CHECK(parse_wav(as_bytes(wav_file(fmt_chunk(0xfffe, 1, 2, 16, guid) + "LIST" + std::string{3, 0, 0, 0} + "odd" +
                                    '\0' + data_chunk("12"))),
                  "f")
            .samples.numel() == 1);
  const struct {
    std::string file;
    const char* message;
  } rows[] = {
      {"RIFF", "expected a header of 12 bytes, got 4 bytes"},
      {same_length(good, 0, "RIFX"), "expected a file that starts with RIFF, its size and WAVE, got another"},
      {same_length(good, 0, "RF64"), "got RF64, which is not supported"},
      {same_length(good, 8, "AVI "), "got another"},
      {good.substr(0, good.size() - 1), "expected 52 bytes as the header says, got 51 (is the file truncated?)"},
      {wav_file(one + data_chunk("12345678") + "x").replace(40, 1, "\x0a"),
       "expected 10 bytes of the chunk at byte 36, got 9"},
      {wav_file(one), "expected a chunk \"data\", found none"},
      {wav_file(one + "da"), "expected a chunk at byte 36, got 2 bytes"},
      {wav_file(data_chunk("12")), "expected \"fmt \" before \"data\", found none"},
      {wav_file("fmt " + std::string{2, 0, 0, 0, 1, 0} + data_chunk("12")),
       "expected 16 bytes or more in \"fmt \", got 2"},
      {wav_file(one + data_chunk("123")), "expected frames of 2 bytes, got 3 bytes, which is 1 too many"},
      {wav_file(fmt_chunk(0x55, 1, 2, 16) + data_chunk("12")), "got 85 (MP3)"},
      {wav_file(fmt_chunk(1, 1, 2, 12) + data_chunk("12")), "expected 8, 16, 24 or 32 bits of PCM, got 12"},
      {wav_file(fmt_chunk(3, 1, 2, 16) + data_chunk("12")), "expected floats of 32 or 64 bits, got 16"},
      {wav_file(fmt_chunk(1, 0, 0, 16) + data_chunk("12")), "expected 1 channel or more, got 0"},
      {wav_file(fmt_chunk(1, 2, 2, 16) + data_chunk("12")), "expected frames of 4 bytes (2 x 16 bits), got 2"},
      {same_length(good, 24, std::string(4, '\0')), "expected 1 frame a second or more, got 0"},
      {wav_file(fmt_chunk(0xfffe, 1, 2, 16) + data_chunk("12")),
       "expected 40 bytes in \"fmt \" of format 65534, got 16"},
      {wav_file(fmt_chunk(0xfffe, 1, 2, 16, same_length(guid, 20, "x")) + data_chunk("12")),
       "expected a Microsoft sub-format"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.message);
    CHECK_ERROR(parse_wav(as_bytes(row.file), "f"), std::string(row.message));
    CHECK_ERROR(parse_wav(as_bytes(row.file), "f"), "[wav] f: expected");
  }
  for (size_t n = 0; n < good.size(); ++n) CHECK_THROWS_AS(parse_wav(as_bytes(good.substr(0, n)), "f"), Error);
}
