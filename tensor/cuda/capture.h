#pragma once
// Recording and replaying CUDA graphs, and the memory that a graph keeps alive. Internal to the CUDA backend.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/random.h"

namespace lockstep::cuda {

// Functions of the CUDA Backend; tensor/backend.h documents them. set_keys() is defined in random.cu.
void begin_capture(int device);
void* end_capture(int device);
void abandon_capture(int device) noexcept;
void launch_graph(void* graph, int device);
void free_graph(void* graph, int device) noexcept;
void set_keys(RecordedKey* to, const RecordedKey* keys, int count, int device);
/// True while this thread records a graph.
bool is_recording();

/// Allocates memory for the graph that this thread records. Returns nullptr if the thread records no graph.
void* allocate_captured(size_t bytes, int device);
/// Returns memory of the graph that this thread records, or nullptr if it records none. The memory is zero before the
/// graph's first replay. All calls with one stream during a recording return the same memory.
void* recorded_zeros(size_t bytes, cudaStream_t stream);
/// Gives freed memory to the graph that owns it or, while this thread records a graph, to that one. Returns
/// false if there is no such graph: then the caller must free the memory.
bool deallocate_captured(void* data, int device, void* stream) noexcept;
// More functions of the CUDA Backend, documented in tensor/backend.h.
bool keep_for_graphs(void* data, int device, void* stream, uint32_t born) noexcept;
void hold_for_graphs(const std::shared_ptr<void>& owner, int device, uint32_t born) noexcept;
void free_in_order(void* data, int device, void* stream) noexcept;

}  // namespace lockstep::cuda
