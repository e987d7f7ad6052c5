#pragma once
// NumPy's files (numpy.lib.format): .npy holds one array, .npz is a zip file of several. The reader does not use
// Python, and nothing in a file is ever executed.
#include <string>
#include <utility>
#include <vector>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// Reads a .npy file of version 1, 2 or 3 onto the CPU: bool, float16, float32, float64, complex64, complex128, int8,
/// int32, int64 or uint8, of either byte order. Fortran order becomes row-major. The header is checked against the file
/// size before anything is allocated. Error for text, times, structures and Python objects.
Tensor read_npy(const std::string& path);
/// read_npy() of a file in memory. Errors begin with `origin`.
Tensor parse_npy(Bytes file, const std::string& origin);

/// Writes a CPU tensor of any strides, row-major, byte for byte as numpy.save() does, with write_atomically(). Error
/// for bf16, which NumPy lacks.
void save_npy(const std::string& path, const Tensor& tensor);

/// Names of the arrays in a .npz file, in file order: member a.npy is "a".
std::vector<std::string> npz_names(const std::string& path);
/// Reads one array. Error if there is none of this name; the Error lists the first names.
Tensor read_npz(const std::string& path, const std::string& name);
/// Reads all arrays, with their names. Members may be stored or deflated; each CRC is checked.
std::vector<std::pair<std::string, Tensor>> read_npz(const std::string& path);
/// read_npz() of a file in memory. Errors begin with `origin`.
std::vector<std::pair<std::string, Tensor>> parse_npz(Bytes file, const std::string& origin);

/// Writes tensors as numpy.savez() does, or if `compress` is true, as numpy.savez_compressed(). Uses
/// write_atomically(). Error if a name appears twice.
void save_npz(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
              bool compress = false);

}  // namespace lockstep::data
