// Planted bugs in the host's use of the device.
#include <cublasLt.h>

#include "tests/cudasim/mutants/streams.h"

namespace mutants {
namespace {

bool staging_buffer_filled_again_too_early(Bug bug) {
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
// The host reads a result that a stream copies to it.
bool result_read(Bug bug) {
  return in_all_policies([&] {
    const Array x(counting(n));
    const Streams s;
    float* result = pinned(0);
    cudaMemcpyAsync(result, x, bytes, cudaMemcpyDeviceToHost, s.first);
    cudaEventRecord(s.ready, s.first);
    while (bug.mistake == "query" && cudaEventQuery(s.ready) == cudaErrorNotReady && !bug) {}
    if (bug.mistake == "stream") cudaStreamSynchronize(bug ? s.second : s.first);
    if (bug.mistake == "early" && !bug) cudaStreamSynchronize(s.first);
    const bool good = result[5] == 6;
    cudaStreamSynchronize(s.first);
    cudaFreeHost(result);
    return good;
  });
}

bool used_after_it_was_freed(Bug bug) {
  const Array out(n);
  float* x = nullptr;
  cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, nullptr);
  cudaMemsetAsync(x, 0, bytes, nullptr);
  if (bug) cudaFreeAsync(x, nullptr);
  start_scale(nullptr, x, out, 1);
  if (!bug) cudaFreeAsync(x, nullptr);
  return sum_of(out.get()) == 0;
}
bool never_freed(Bug bug) {
  void* x = nullptr;
  cudaMalloc(&x, bytes);
  if (!bug) cudaFree(x);
  return fake::held().allocations == 0;
}

bool host_reads_device_memory(Bug bug) {
  const Array x(counting(n));
  const std::vector<float> values = x.get();
  const volatile float* from = bug ? static_cast<float*>(x) : values.data();
  return from[7] == 8;
}
bool kernel_reads_host_memory(Bug bug) {  // a device-to-device copy, whose arguments are checked
  const Array x(counting(n)), out(n);
  const std::vector<float> host = counting(n);
  return cudaMemcpy(out, bug ? host.data() : static_cast<const float*>(x), bytes, cudaMemcpyDeviceToDevice) ==
             cudaSuccess &&
         out.get()[1] == 2;
}
bool copy_past_the_end(Bug bug) {
  const Array x(n);
  const std::vector<float> host = counting(2 * n);
  return cudaMemcpy(x, host.data(), bug ? bytes + 4 : bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}
bool wrong_stream(Bug bug) {
  const Array x(counting(n)), out(n);
  cudaStream_t stream = nullptr;
  cudaSetDevice(bug("device") ? 1 : 0);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaSetDevice(0);
  if (bug("ended")) cudaStreamDestroy(stream);
  const bool good = start_scale(stream, x, out, 1);
  if (!bug("ended")) cudaStreamDestroy(stream);
  return good;
}
bool captures(Bug bug) {
  const Array x(counting(n)), out(n);
  const Streams s;
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
  behind(s.second, s.first, s.ready);
  start_scale(s.second, x, out, 3);
  cudaEventRecord(s.finished, s.second);
  if (!bug("unjoined")) cudaStreamWaitEvent(s.first, s.finished, 0);
  if (bug("wait")) cudaStreamSynchronize(s.first);
  const bool good = cudaStreamEndCapture(s.first, &graph) == cudaSuccess;
  if (graph) cudaGraphDestroy(graph);
  return good;
}

// Row-major y (m, n) = x (m, k) w (n, k)^T + r is column-major y^T = w x^T + r^T. A batch of two, of views: x has rows
// of 6, and y and r are parts of rows of 7. w is square, so a forgotten transposition still fits.
bool product(Bug bug) {
  constexpr int64_t rows = 6, columns = 4, inner = 4, x_lead = 6, y_lead = 7;
  const Array x(counting(2 * rows * x_lead + 1)), w(counting(columns * inner)),
      y(std::vector<float>(2 * rows * y_lead, -1)), r(counting((bug("short_residual") ? 1 : 2) * rows * y_lead));
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t d;
  cublasLtMatrixLayout_t a, b, out;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found;
  const int32_t transposed = bug("transposition") ? CUBLAS_OP_N : CUBLAS_OP_T, two = 2;
  const float one = 1;
  int count = 0;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, inner, columns, bug("lead") ? inner - 1 : inner);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, inner, rows,
                             bug("view_lead")     ? inner
                             : bug("past_memory") ? x_lead * 10
                                                  : x_lead);
  if (bug("row_major")) cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, rows, columns, y_lead);
  else cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, columns, rows, bug("slice") ? columns : y_lead);
  const int64_t strides[] = {0, rows * (bug("batch") ? inner : x_lead), rows * y_lead};
  for (int i = 0; i < 3; ++i) {
    const cublasLtMatrixLayout_t layout = i == 0 ? a : i == 1 ? b : out;
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, sizeof two);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &strides[i], 8);
  }
  cublasLtMatmulPreferenceCreate(&preference);
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, a, b, out, out, preference, 1, &found, &count);
  const uint32_t relu = CUBLASLT_EPILOGUE_RELU;
  if (bug("epilogue")) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu);
  // the default preference promises an alignment of 256 bytes
  const float* from = x + (bug("alignment") ? 1 : 0);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmul(handle, d, &one, w, a, from, b, &one, bug("own_memory") ? y : r, out, y, out, &found.algo,
                            nullptr, 0, nullptr);
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

const Cases cases{
    {"staging buffer filled again too early", staging_buffer_filled_again_too_early},
    {"result read before it is there", result_read, "early"},
    {"query taken for a wait", result_read, "query"},
    {"wait for another stream", result_read, "stream"},
    {"used after it was freed", used_after_it_was_freed},
    {"never freed", never_freed},
    {"host reads device memory", host_reads_device_memory},
    {"device copy from host memory", kernel_reads_host_memory},
    {"copy past the end", copy_past_the_end},
    {"stream used after its end", wrong_stream, "ended"},
    {"stream of another device", wrong_stream, "device"},
    {"wait while capturing", captures, "wait"},
    {"captured work that nothing waits for", captures, "unjoined"},
    {"result laid out by rows", product, "row_major"},
    {"rows closer than long", product, "lead"},
    {"less aligned than promised", product, "alignment"},
    {"lead of a view's columns", product, "view_lead"},
    {"lead past the memory", product, "past_memory"},
    {"lead of a slice of the result", product, "slice"},
    {"transposition of a square forgotten", product, "transposition"},
    {"batches taken for dense", product, "batch"},
    {"sum with the result's own memory", product, "own_memory"},
    {"residual shorter than the result", product, "short_residual"},
    {"an algorithm asked for with another epilogue", product, "epilogue"},
};

}  // namespace
}  // namespace mutants
