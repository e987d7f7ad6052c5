#pragma once
// WAV: sound in a RIFF file (Microsoft's "Multimedia Programming Interface and Data Specifications 1.0", and
// WAVE_FORMAT_EXTENSIBLE).
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

struct Wav {
  Tensor samples;         ///< f32 (channels, frames), on the CPU; whole numbers are scaled into [-1, 1]
  int64_t rate = 0;       ///< frames a second
  int bits = 0;           ///< of a sample in the file
  bool floating = false;  ///< the file holds floating-point numbers
};

/// Reads PCM of 8 (unsigned), 16, 24 or 32 bits, or floats of 32 or 64 bits, as torchaudio.load() does. Error for other
/// codecs, which it names, and for sizes that the file does not have.
Wav read_wav(const std::string& path);
/// The same from memory; `origin` opens the Errors.
Wav parse_wav(Bytes file, const std::string& origin);

enum class WavFormat { pcm16, float32 };

/// Writes f32 samples (channels, frames), on the CPU, atomically: see write_atomically(). pcm16 rounds 32768 times the
/// sample to the nearest whole number, ties to even, and clips it to 16 bits; what read_wav() gave for 16 bits comes
/// back as it was.
void save_wav(const std::string& path, const Tensor& samples, int64_t rate, WavFormat format = WavFormat::pcm16);

}  // namespace lockstep::data
