// Reads and writes WAV files. See wav.h.
#include "extensions/files/wav.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "data/little_endian.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

constexpr int wav_pcm = 1, wav_float = 3, wav_extensible = 0xfffe;
/// The tail, after the format number, of the 16-byte GUID in WAVE_FORMAT_EXTENSIBLE.
constexpr std::string_view wav_guid{"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71", 14};

std::string_view text_at(Bytes file, size_t at, size_t count) {
  return {reinterpret_cast<const char*>(file.data()) + at, count};
}

const char* codec_name(int format) {
  switch (format) {
    case 2: return " (ADPCM)";
    case 6: return " (A-law)";
    case 7: return " (mu-law)";
    case 0x11: return " (IMA ADPCM)";
    case 0x31: return " (GSM)";
    case 0x55: return " (MP3)";
    default: return "";
  }
}

struct WavLayout {
  int format = 0, channels = 0, bits = 0;
  int64_t rate = 0;
};

WavLayout parse_layout(Bytes chunk, const std::string& where) {
  LOCKSTEP_CHECK(chunk.size() >= 16, where, ": expected 16 bytes or more in \"fmt \", got ", chunk.size(),
                 "; write the file again");
  WavLayout layout{int(little(chunk, 0, 2)), int(little(chunk, 2, 2)), int(little(chunk, 14, 2)),
                   int64_t(little(chunk, 4, 4))};
  if (layout.format == wav_extensible) {
    LOCKSTEP_CHECK(chunk.size() >= 40, where, ": expected 40 bytes in \"fmt \" of format 65534, got ", chunk.size(),
                   "; write the file again");
    LOCKSTEP_CHECK(text_at(chunk, 26, wav_guid.size()) == wav_guid, where,
                   ": expected a Microsoft sub-format in \"fmt \", got another; convert it to 16-bit PCM");
    layout.format = int(little(chunk, 24, 2));
  }
  const int bits = layout.bits, block = int(little(chunk, 12, 2));
  LOCKSTEP_CHECK(layout.format == wav_pcm || layout.format == wav_float, where,
                 ": expected format 1 (PCM) or 3 (float), got ", layout.format, codec_name(layout.format),
                 "; convert it to 16-bit PCM");
  if (layout.format == wav_pcm)
    LOCKSTEP_CHECK(bits == 8 || bits == 16 || bits == 24 || bits == 32, where,
                   ": expected 8, 16, 24 or 32 bits of PCM, got ", bits, "; convert it to 16-bit PCM");
  else LOCKSTEP_CHECK(bits == 32 || bits == 64, where, ": expected floats of 32 or 64 bits, got ", bits, "; use 32");
  LOCKSTEP_CHECK(layout.channels >= 1, where, ": expected 1 channel or more, got 0; write the file again");
  LOCKSTEP_CHECK(layout.rate >= 1, where, ": expected 1 frame a second or more, got 0; write the file again");
  LOCKSTEP_CHECK(block == layout.channels * bits / 8, where, ": expected frames of ", layout.channels * bits / 8,
                 " bytes (", layout.channels, " x ", bits, " bits), got ", block, "; write the file again");
  return layout;
}

/// Converts interleaved samples to (channels, frames). value() makes a number from the bits of a sample.
void take_samples(Bytes data, int size, int64_t channels, float* out, auto value) {
  const int64_t frames = int64_t(data.size()) / size / channels;
  for (int64_t frame = 0, at = 0; frame < frames; ++frame)
    for (int64_t channel = 0; channel < channels; ++channel, at += size)
      out[channel * frames + frame] = float(value(little(data, size_t(at), size)));
}

}  // namespace

Wav parse_wav(Bytes file, const std::string& origin) {
  const std::string where = "[wav] " + origin;
  LOCKSTEP_CHECK(file.size() >= 12, where, ": expected a header of 12 bytes, got ", file.size(),
                 " bytes (is it truncated?); copy it again");
  LOCKSTEP_CHECK(text_at(file, 0, 4) == "RIFF" && text_at(file, 8, 4) == "WAVE", where,
                 ": expected a file that starts with RIFF, its size and WAVE, got ",
                 text_at(file, 0, 4) == "RF64" ? "RF64, which is not supported" : "another", "; convert it to WAV");
  // A file written to a pipe has unknown sizes (0 or all bits set). Its data then reach to the end of the file.
  const auto unknown = [](uint64_t size) { return size == 0 || size == 0xffffffff; };
  const bool is_stream = unknown(little(file, 4, 4));
  const uint64_t riff = is_stream ? file.size() : little(file, 4, 4) + 8;
  LOCKSTEP_CHECK(riff <= file.size(), where, ": expected ", riff, " bytes as the header says, got ", file.size(),
                 " (is the file truncated?); copy or download it again");
  WavLayout layout;
  for (uint64_t at = 12; at < riff;) {
    LOCKSTEP_CHECK(riff - at >= 8, where, ": expected a chunk at byte ", at, ", got ", riff - at,
                   " bytes; copy or download the file again");
    const std::string_view name = text_at(file, at, 4);
    uint64_t size = little(file, at + 4, 4);
    at += 8;
    if (is_stream && name == "data" && layout.format && unknown(size))
      size = riff - at - (riff - at) % uint64_t(layout.channels * layout.bits / 8);
    LOCKSTEP_CHECK(size <= riff - at, where, ": expected ", size, " bytes of the chunk at byte ", at - 8, ", got ",
                   riff - at, " (is the file truncated?); copy or download it again");
    const Bytes chunk = file.subspan(at, size);
    at += size + size % 2;
    if (name == "fmt ") layout = parse_layout(chunk, where);
    if (name != "data") continue;
    LOCKSTEP_CHECK(layout.format, where, ": expected \"fmt \" before \"data\", found none; write the file again");
    const int bytes = layout.bits / 8, frame = bytes * layout.channels;
    LOCKSTEP_CHECK(size % uint64_t(frame) == 0, where, ": expected frames of ", frame, " bytes, got ", size,
                   " bytes, which is ", size % uint64_t(frame), " too many; write the file again");
    Tensor samples = empty({layout.channels, int64_t(size) / frame}, {.device = cpu});
    float* out = size ? samples.data<float>() : nullptr;
    const auto read = [&](auto value) { take_samples(chunk, bytes, layout.channels, out, value); };
    if (layout.format == wav_float && bytes == 4) read([](uint64_t v) { return std::bit_cast<float>(uint32_t(v)); });
    else if (layout.format == wav_float) read([](uint64_t v) { return std::bit_cast<double>(v); });
    else if (bytes == 1) read([](uint64_t v) { return (float(v) - 128) / 128; });
    else read([&](uint64_t v) { return float(int32_t(uint32_t(v) << (32 - layout.bits))) * 0x1p-31f; });
    return {samples, layout.rate, layout.bits, layout.format == wav_float};
  }
  fail(str(where, ": expected a chunk \"data\", found none; write the file again"));
}

Wav read_wav(const std::string& path) { return parse_file(path, parse_wav); }

void save_wav(const std::string& path, const Tensor& samples, int64_t rate, WavFormat format) {
  const std::string where = "[save_wav] " + path;
  LOCKSTEP_CHECK(samples.defined() && samples.device().is_cpu() && samples.dtype() == f32 && samples.dim() == 2, where,
                 ": expected f32 samples (channels, frames) on the cpu, got ",
                 samples.defined() ? str(samples.dtype(), samples.shape(), " on ", samples.device()) : "none");
  const int64_t channels = samples.size(0), frames = samples.size(1);
  LOCKSTEP_CHECK(channels >= 1 && channels <= 8191, where, ": expected 1 to 8191 channels, got ", channels);
  LOCKSTEP_CHECK(rate >= 1 && rate <= 0x7fffffff / (4 * channels), where, ": expected a rate from 1 to ",
                 0x7fffffff / (4 * channels), ", got ", rate);
  const bool floats = format == WavFormat::float32;
  const int64_t bytes = floats ? 4 : 2, limit = (0xffffffff - 64) / (bytes * channels);
  LOCKSTEP_CHECK(frames <= limit, where, ": expected at most ", limit, " frames (4 GiB), got ", frames, "; split it");
  const Tensor full = samples.contiguous();
  const float* in = full.numel() ? full.data<float>() : nullptr;
  if (!floats)
    for (int64_t i = 0; i < full.numel(); ++i)
      LOCKSTEP_CHECK(!std::isnan(in[i]), where, ": expected numbers, got NaN in channel ", i / frames, ", frame ",
                     i % frames, "; replace it");

  const int64_t data = frames * channels * bytes, pad = data % 2;
  std::string out;
  const auto put = [&](int64_t value, int count) { append_little(out, uint64_t(value), count); };
  out += "RIFF";
  put((floats ? 50 : 36) + data + pad, 4);
  out += "WAVEfmt ";
  put(floats ? 18 : 16, 4), put(floats ? wav_float : wav_pcm, 2), put(channels, 2), put(rate, 4);
  put(rate * channels * bytes, 4), put(channels * bytes, 2), put(8 * bytes, 2);
  if (floats) {  // formats other than PCM have an extension size (0) and a "fact" chunk with the number of frames
    put(0, 2);
    out += "fact";
    put(4, 4), put(frames, 4);
  }
  out += "data";
  put(data, 4);
  out.reserve(out.size() + size_t(data + pad));
  for (int64_t frame = 0; frame < frames; ++frame)
    for (int64_t channel = 0; channel < channels; ++channel) {
      const float value = in[channel * frames + frame];
      if (floats) put(std::bit_cast<uint32_t>(value), 4);
      else put(std::lrintf(std::clamp(value * 32768.f, -32768.f, 32767.f)), 2);
    }
  write_atomically(path, out);
}

}  // namespace lockstep::data
