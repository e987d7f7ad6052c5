#pragma once
// Graphs for the backend, and the memory that they keep. Internal.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/random.h"

namespace lockstep::cuda {

void begin_capture(int device);
void* end_capture(int device);
void abandon_capture(int device) noexcept;
void launch_graph(void* graph, int device);
void free_graph(void* graph, int device) noexcept;
void set_keys(RecordedKey* to, const RecordedKey* keys, int count, int device);  // random.cu
bool is_recording();                                                             // this thread

/// Memory for what this thread records; nullptr when it does not.
void* allocate_captured(size_t bytes, int device);
/// True when the memory is a graph's, or was freed while recording: then the graph keeps it.
bool deallocate_captured(void* data, int device, void* stream) noexcept;
// See Backend.
bool keep_for_graphs(void* data, int device, void* stream, uint32_t born) noexcept;
void hold_for_graphs(const std::shared_ptr<void>& owner, int device, uint32_t born) noexcept;
void free_in_order(void* data, int device, void* stream) noexcept;

}  // namespace lockstep::cuda
