#pragma once
// Internal to this folder: reads and writes an array in .npy format inside any file.
#include <functional>
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// Reads an array whose header and elements take `size` bytes. `read` copies the next `count` bytes, which must exist.
/// Errors begin with `where`.
Tensor read_npy_array(int64_t size, const std::function<void(std::byte* out, int64_t count)>& read,
                      const std::string& where);

/// The header, as numpy.save() writes it, of a file with this tensor in row-major order. npy_elements() come after it.
std::string npy_start(const Tensor& tensor, const std::string& where);
/// The bytes of a contiguous tensor.
Bytes npy_elements(const Tensor& contiguous);

}  // namespace lockstep::data
