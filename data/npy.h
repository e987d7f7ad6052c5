#pragma once
// NumPy's files (numpy.lib.format): .npy, one array, and .npz, a zip file of them. Read without Python: nothing in a
// file makes code run.
#include <string>
#include <utility>
#include <vector>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// Reads a .npy file of version 1, 2 or 3 on the CPU: bool, float16, float32, float64, int8, int32, int64 or uint8, of
/// either byte order. Arrays in Fortran's order become row-major. The header is checked against the file before
/// anything is allocated; complex numbers, text, times, structures and Python's objects are Errors that name them.
Tensor read_npy(const std::string& path);
/// The same from memory; `origin` opens the Errors.
Tensor parse_npy(Bytes file, const std::string& origin);

/// Writes a tensor (on the CPU, any strides) row-major, in the bytes of numpy.save(), atomically: see
/// write_atomically(). Error for bf16, which NumPy lacks.
void save_npy(const std::string& path, const Tensor& tensor);

/// The names of a .npz file's arrays in its order: member a.npy is "a".
std::vector<std::string> npz_names(const std::string& path);
/// One of them. Error lists the names when there is none of this name.
Tensor read_npz(const std::string& path, const std::string& name);
/// All, with their names. Stored and deflated members; the CRC of each is checked.
std::vector<std::pair<std::string, Tensor>> read_npz(const std::string& path);
/// The same from memory; `origin` opens the Errors.
std::vector<std::pair<std::string, Tensor>> parse_npz(Bytes file, const std::string& origin);

/// Writes tensors as numpy.savez() does, or deflated as numpy.savez_compressed(), atomically. Error when a name appears
/// twice.
void save_npz(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
              bool compress = false);

}  // namespace lockstep::data
