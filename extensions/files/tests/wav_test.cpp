// WAV: files of libsndfile are read exactly, files are written correctly, and damaged files are rejected.
#include "extensions/files/wav.h"

#include <cmath>

#include "extensions/files/npy.h"
#include "tensor/ops.h"
#include "tests/data/util.h"

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

TEST_CASE("wav: damaged files are rejected") {
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
