#pragma once
// cuDNN's descriptors in miniature (cudnn_descriptors.cpp), and the graphs that they describe (run by cudnn.cpp).
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fake::dnn {

using Four = std::array<int64_t, 4>;
struct Content;

struct Tensor {
  int64_t id;
  cudnnDataType_t type;
  Four size, stride;
  int64_t alignment;
  bool is_inner, is_number;

  explicit Tensor(const Content& content);
  /// Elements from its first to its last one in memory.
  int64_t span() const;
  bool operator==(const Tensor&) const = default;
};

struct Operation {
  cudnnBackendDescriptorType_t kind;
  std::vector<Tensor> inputs;  ///< x, b, where; a and b of a product
  Tensor output;
  cudnnPointwiseMode_t mode{};
  cudnnReduceTensorOp_t reduction{};
  int64_t axis = -1;
};

struct Graph {
  std::vector<Operation> operations;
  std::map<int64_t, Tensor> tensors;
  /// Something, and with reshapes (backward) the largest inner tensor in 16 bits.
  int64_t workspace() const;
};

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<const Content>> others;
};

/// What a descriptor holds. Finalized it stays as it is, also for those that refer to it.
struct Content {
  cudnnBackendDescriptorType_t kind;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};
  std::shared_ptr<const Graph> graph = nullptr;  ///< of a graph, and of all that is made from one

  bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) > 0; }
  /// Zero when it was not set.
  template <class T> T get(cudnnBackendAttributeName_t name) const {
    T value{};
    if (has(name)) std::memcpy(&value, attributes.at(name).bytes.data(), sizeof value);
    return value;
  }
  template <class T> std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const std::vector<char>& bytes = attributes.at(name).bytes;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  const Content& other(cudnnBackendAttributeName_t name) const { return *attributes.at(name).others.at(0); }
};

const Content& content(cudnnBackendDescriptor_t descriptor);
/// Returns the status, and leaves the reason for cudnnGetLastErrorString().
cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why);

}  // namespace fake::dnn
