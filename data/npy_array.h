#pragma once
// An array as .npy has it, inside whatever file. Internal to data/.
#include <functional>
#include <string>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// Reads an array of `size` bytes with its header; `read` gives the next bytes, which are there, and `where` opens the
/// Errors.
Tensor read_npy_array(int64_t size, const std::function<void(std::byte* out, int64_t count)>& read,
                      const std::string& where);

/// The header of a file that holds this tensor row-major, as numpy.save() writes it, and the elements after it.
std::string npy_start(const Tensor& tensor, const std::string& where);
Bytes npy_elements(const Tensor& contiguous);

}  // namespace lockstep::data
