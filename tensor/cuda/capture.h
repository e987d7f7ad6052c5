#pragma once
// Graphs for the backend, and the memory that they keep. Internal.
#include <cstddef>

namespace lockstep::cuda {

void begin_capture(int device);
void* end_capture(int device);
void abandon_capture(int device) noexcept;
void launch_graph(void* graph, int device);
void free_graph(void* graph, int device) noexcept;

/// Memory for what this thread records; nullptr when it does not.
void* allocate_captured(size_t bytes, int device);
/// True when the memory is a graph's, or was freed while recording: then the graph keeps it.
bool deallocate_captured(void* data, int device, void* stream) noexcept;

}  // namespace lockstep::cuda
