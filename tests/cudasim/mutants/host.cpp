// Planted bugs in the host's use of the device.
#include <cublasLt.h>

#include <cstdlib>

#include "tests/cudasim/mutants/streams.h"

namespace mutants {
namespace {

// One stream produces a value, another one uses it.
enum class Wait { right, none, before };
bool two_streams(Wait wait) {
  return in_all_policies([&] {
    const Array x(counting(n)), made(n), out(n);
    const Streams s;
    if (wait == Wait::before) cudaEventRecord(s.ready, s.first);
    start_scale(s.first, x, made, 2);
    if (wait == Wait::right) cudaEventRecord(s.ready, s.first);
    if (wait != Wait::none) cudaStreamWaitEvent(s.second, s.ready, 0);
    start_scale(s.second, made, out, 10);
    cudaStreamSynchronize(s.second);
    return out.get()[3] == 80;
  });
}
bool no_wait_for_an_event(bool bug) { return two_streams(bug ? Wait::none : Wait::right); }
bool event_recorded_before_the_work(bool bug) { return two_streams(bug ? Wait::before : Wait::right); }

bool staging_buffer_filled_again_too_early(bool bug) {
  return in_all_policies([&] {
    const Array first(n), second(n);
    const Streams s;
    float* staging = pinned(1);
    cudaMemcpyAsync(first, staging, bytes, cudaMemcpyHostToDevice, s.first);
    if (!bug) cudaStreamSynchronize(s.first);
    for (size_t i = 0; i < n; ++i) staging[i] = 2;
    cudaMemcpyAsync(second, staging, bytes, cudaMemcpyHostToDevice, s.first);
    cudaStreamSynchronize(s.first);
    const bool good = first.get()[0] == 1 && second.get()[0] == 2;
    cudaFreeHost(staging);
    return good;
  });
}
bool result_read_before_it_is_there(bool bug) {
  return in_all_policies([&] {
    const Array x(counting(n));
    const Streams s;
    float* result = pinned(0);
    cudaMemcpyAsync(result, x, bytes, cudaMemcpyDeviceToHost, s.first);
    if (!bug) cudaStreamSynchronize(s.first);
    const bool good = result[5] == 6;
    cudaStreamSynchronize(s.first);
    cudaFreeHost(result);
    return good;
  });
}

// Memory of one stream is freed while another stream reads it.
bool freed_too_early(bool bug) {
  return in_all_policies([&] {
    const Array out(n);
    const Streams s;
    float* x = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, s.first);
    cudaMemsetAsync(x, 0, bytes, s.first);
    cudaEventRecord(s.ready, s.first);
    cudaStreamWaitEvent(s.second, s.ready, 0);
    start_scale(s.second, x, out, 1);
    cudaEventRecord(s.finished, s.second);
    if (!bug) cudaStreamWaitEvent(s.first, s.finished, 0);
    cudaFreeAsync(x, s.first);
    cudaStreamSynchronize(s.first);
    cudaStreamSynchronize(s.second);
    return out.get()[0] == 0;
  });
}
bool used_after_it_was_freed(bool bug) {
  const Array out(n);
  float* x = nullptr;
  cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, nullptr);
  cudaMemsetAsync(x, 0, bytes, nullptr);
  if (bug) cudaFreeAsync(x, nullptr);
  start_scale(nullptr, x, out, 1);
  if (!bug) cudaFreeAsync(x, nullptr);
  return sum_of(out.get()) == 0;
}
bool freed_twice(bool bug) {
  float* x = nullptr;
  cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, nullptr);
  cudaError_t code = cudaFreeAsync(x, nullptr);
  if (bug) code = cudaFreeAsync(x, nullptr);
  return code == cudaSuccess;
}
bool never_freed(bool bug) {
  void* x = nullptr;
  cudaMalloc(&x, bytes);
  if (!bug) cudaFree(x);
  return fake::held().allocations == 0;
}

bool host_reads_device_memory(bool bug) {
  const Array x(counting(n));
  const std::vector<float> values = x.get();
  const volatile float* from = bug ? static_cast<float*>(x) : values.data();
  return from[7] == 8;
}
bool kernel_reads_host_memory(bool bug) {  // a device-to-device copy, whose arguments are checked
  const Array x(counting(n)), out(n);
  const std::vector<float> host = counting(n);
  return cudaMemcpy(out, bug ? host.data() : static_cast<const float*>(x), bytes, cudaMemcpyDeviceToDevice) ==
             cudaSuccess &&
         out.get()[1] == 2;
}
bool copy_past_the_end(bool bug) {
  const Array x(n);
  const std::vector<float> host = counting(2 * n);
  return cudaMemcpy(x, host.data(), bug ? bytes + 4 : bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}
bool stream_used_after_its_end(bool bug) {
  const Array x(counting(n)), out(n);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (bug) cudaStreamDestroy(stream);
  const bool good = start_scale(stream, x, out, 1);
  if (!bug) cudaStreamDestroy(stream);
  return good;
}
bool stream_of_another_device(bool bug) {
  const Array x(counting(n)), out(n);
  cudaStream_t stream = nullptr;
  cudaSetDevice(bug ? 1 : 0);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaSetDevice(0);
  const bool good = start_scale(stream, x, out, 1);
  cudaStreamDestroy(stream);
  return good;
}
bool wait_while_capturing(bool bug) {
  const Array x(counting(n)), out(n);
  const Streams s;
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
  start_scale(s.first, x, out, 3);
  if (bug) cudaStreamSynchronize(s.first);
  const bool good = cudaStreamEndCapture(s.first, &graph) == cudaSuccess;
  if (graph) cudaGraphDestroy(graph);
  return good;
}
bool captured_work_that_nothing_waits_for(bool bug) {
  const Array x(counting(n)), out(n);
  const Streams s;
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
  cudaEventRecord(s.ready, s.first);
  cudaStreamWaitEvent(s.second, s.ready, 0);
  start_scale(s.second, x, out, 3);
  cudaEventRecord(s.finished, s.second);
  if (!bug) cudaStreamWaitEvent(s.first, s.finished, 0);
  const bool good = cudaStreamEndCapture(s.first, &graph) == cudaSuccess;
  if (graph) cudaGraphDestroy(graph);
  return good;
}

// Row-major y (m, n) = x (m, k) w (n, k)^T + r is column-major y^T = w x^T + r^T. A batch of two, of views: x has rows
// of 6, and y and r are parts of rows of 7. w is square, so a forgotten transposition still fits.
enum class Product {
  right,
  row_major,
  lead,
  alignment,
  view_lead,
  past_memory,
  slice,
  transposition,
  batch,
  own_memory,
  short_residual,
  epilogue  // another than the algorithm was asked for; here it changes nothing
};
template <Product mistake> bool product(bool bug) {
  constexpr int64_t rows = 6, columns = 4, inner = 4, x_lead = 6, y_lead = 7;
  const auto is = [=](Product which) { return bug && mistake == which; };
  const Array x(counting(2 * rows * x_lead + 1)), w(counting(columns * inner)),
      y(std::vector<float>(2 * rows * y_lead, -1)), r(counting((is(Product::short_residual) ? 1 : 2) * rows * y_lead));
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t d;
  cublasLtMatrixLayout_t a, b, out;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found;
  const int32_t transposed = is(Product::transposition) ? CUBLAS_OP_N : CUBLAS_OP_T, two = 2;
  const float one = 1;
  int count = 0;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, inner, columns, is(Product::lead) ? inner - 1 : inner);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, inner, rows,
                             is(Product::view_lead)     ? inner
                             : is(Product::past_memory) ? x_lead * 10
                                                        : x_lead);
  if (is(Product::row_major)) cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, rows, columns, y_lead);
  else cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, columns, rows, is(Product::slice) ? columns : y_lead);
  const int64_t strides[] = {0, rows * (is(Product::batch) ? inner : x_lead), rows * y_lead};
  for (int i = 0; i < 3; ++i) {
    const cublasLtMatrixLayout_t layout = i == 0 ? a : i == 1 ? b : out;
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, sizeof two);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &strides[i], 8);
  }
  cublasLtMatmulPreferenceCreate(&preference);
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, a, b, out, out, preference, 1, &found, &count);
  const uint32_t relu = CUBLASLT_EPILOGUE_RELU;
  if (is(Product::epilogue)) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu);
  // the default preference promises an alignment of 256 bytes
  const float* from = x + (is(Product::alignment) ? 1 : 0);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmul(handle, d, &one, w, a, from, b, &one, is(Product::own_memory) ? y : r, out, y, out,
                            &found.algo, nullptr, 0, nullptr);
  bool good = status == CUBLAS_STATUS_SUCCESS;
  const std::vector<float> got = y.get();
  for (int64_t i = 0; i < 2 * rows * y_lead; ++i) {
    float wanted = i % y_lead < columns ? float(i + 1) : -1;
    for (int64_t k = 0; k < inner && wanted >= 0; ++k)
      wanted += float((i / y_lead * x_lead + k + 1) * (i % y_lead * inner + k + 1));
    good = good && got[size_t(i)] == wanted;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  for (cublasLtMatrixLayout_t l : {a, b, out}) cublasLtMatrixLayoutDestroy(l);
  cublasLtMatmulDescDestroy(d);
  cublasLtDestroy(handle);
  return good;
}

}  // namespace

std::vector<Case> host_cases() {
  return {
      {"no wait for an event", no_wait_for_an_event, every},
      {"event recorded before the work", event_recorded_before_the_work, every},
      {"staging buffer filled again too early", staging_buffer_filled_again_too_early, every},
      {"result read before it is there", result_read_before_it_is_there, every},
      {"freed too early", freed_too_early, every},
      {"used after it was freed", used_after_it_was_freed, every},
      {"freed twice", freed_twice, every},
      {"never freed", never_freed, every},
      {"host reads device memory", host_reads_device_memory, every},
      {"device copy from host memory", kernel_reads_host_memory, every},
      {"copy past the end", copy_past_the_end, every},
      {"stream used after its end", stream_used_after_its_end, every},
      {"stream of another device", stream_of_another_device, every},
      {"wait while capturing", wait_while_capturing, every},
      {"captured work that nothing waits for", captured_work_that_nothing_waits_for, every},
      {"result laid out by rows", product<Product::row_major>, every},
      {"rows closer than long", product<Product::lead>, every},
      {"less aligned than promised", product<Product::alignment>, every},
      {"lead of a view's columns", product<Product::view_lead>, every},
      {"lead past the memory", product<Product::past_memory>, every},
      {"lead of a slice of the result", product<Product::slice>, every},
      {"transposition of a square forgotten", product<Product::transposition>, every},
      {"batches taken for dense", product<Product::batch>, every},
      {"sum with the result's own memory", product<Product::own_memory>, every},
      {"residual shorter than the result", product<Product::short_residual>, every},
      {"an algorithm asked for with another epilogue", product<Product::epilogue>, every},
  };
}

}  // namespace mutants
