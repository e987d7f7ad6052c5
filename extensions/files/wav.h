#pragma once
// WAV: sound in a RIFF file (Microsoft's "Multimedia Programming Interface and Data Specifications 1.0", and
// WAVE_FORMAT_EXTENSIBLE). We do not use libsndfile: it reads a truncated file as a shorter one, and a file from a
// pipe, whose sizes are 0, as an empty one.
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// A decoded sound.
struct Wav {
  Tensor samples;         ///< f32 (channels, frames), on the CPU; integers are scaled to [-1, 1]
  int64_t rate = 0;       ///< frames per second
  int bits = 0;           ///< bits of a sample in the file
  bool floating = false;  ///< true: the file holds floating-point numbers; false: integers
};

/// Reads PCM of 8 (unsigned), 16, 24 or 32 bits, or floats of 32 or 64 bits, as torchaudio.load() does. Error for other
/// codecs (the Error names them), and for a file shorter than its header says.
Wav read_wav(const std::string& path);
/// read_wav() of a file in memory. Errors begin with `origin`.
Wav parse_wav(Bytes file, const std::string& origin);

/// Sample formats of save_wav().
enum class WavFormat { pcm16, float32 };

/// Writes f32 CPU samples (channels, frames) with write_atomically(). pcm16 multiplies by 32768, rounds to nearest
/// even, and clips to 16 bits: a 16-bit file that was read and saved again has the same samples.
void save_wav(const std::string& path, const Tensor& samples, int64_t rate, WavFormat format = WavFormat::pcm16);

}  // namespace lockstep::data
