#pragma once
// A fake of cuDNN's descriptors (cudnn_descriptors.cpp) and of the graphs that they describe (run by cudnn.cpp).
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fake::dnn {

/// Sizes, strides or indices of a tensor with 4 dims.
using Four = std::array<int64_t, 4>;
struct Content;

/// A tensor descriptor. is_inner: virtual; is_number: a scalar passed by the host.
struct Tensor {
  int64_t id;
  cudnnDataType_t type;
  Four size, stride;
  int64_t alignment;
  bool is_inner, is_number;

  explicit Tensor(const Content& content);
  /// Elements from the first to the last one in memory.
  int64_t span() const;
  bool operator==(const Tensor&) const = default;
};

/// An operation of a graph.
struct Operation {
  cudnnBackendDescriptorType_t kind;
  std::vector<Tensor> inputs;  ///< x, b and the selector; or the factors a and b of a product
  Tensor output;
  cudnnPointwiseMode_t mode{};
  cudnnReduceTensorOp_t reduction{};
  int64_t axis = -1;
};

/// A finalized graph.
struct Graph {
  std::vector<Operation> operations;
  std::map<int64_t, Tensor> tensors;
  /// Bytes of workspace: a few and, with reshapes (backward), the largest inner tensor in 16 bits.
  int64_t workspace() const;
};

/// The value of an attribute: bytes or other descriptors.
struct Attribute {
  cudnnBackendAttributeType_t type;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<const Content>> others;
};

/// The contents of a descriptor. Once finalized they never change, as other descriptors may refer to them.
struct Content {
  cudnnBackendDescriptorType_t kind;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};
  std::shared_ptr<const Graph> graph = nullptr;  ///< set for graphs and everything made from one

  /// True if the attribute was set.
  bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) > 0; }
  /// The value of an attribute; zero if it was not set.
  template <class T> T get(cudnnBackendAttributeName_t name) const {
    T value{};
    if (has(name)) std::memcpy(&value, attributes.at(name).bytes.data(), sizeof value);
    return value;
  }
  /// All values of an attribute.
  template <class T> std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const std::vector<char>& bytes = attributes.at(name).bytes;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// The first descriptor of an attribute.
  const Content& other(cudnnBackendAttributeName_t name) const { return *attributes.at(name).others.at(0); }
};

/// The contents of a descriptor.
const Content& content(cudnnBackendDescriptor_t descriptor);
/// Returns the status and stores the reason for cudnnGetLastErrorString().
cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why);

}  // namespace fake::dnn
