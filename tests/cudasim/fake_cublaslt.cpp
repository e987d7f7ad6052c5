// Fake cuBLASLt: column-major reference matmul D = alpha*op(A)op(B)+beta*C with epilogues, argument checks included.
#include <cublasLt.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cmath>
#include <cstring>
#include "tests/cudasim/fake.h"
struct cublasLtContext {};
namespace {
struct Desc { cublasComputeType_t ct; cudaDataType_t st; int32_t ta = 0, tb = 0; uint32_t epi = 1; const void* bias = nullptr; int32_t bias_t = -1; };
struct Layout { cudaDataType_t t; uint64_t r, c; int64_t ld; int32_t batch = 1; int64_t stride = 0; int32_t order = CUBLASLT_ORDER_COL; };
Desc* D(cublasLtMatmulDesc_t d) { return reinterpret_cast<Desc*>(d); }
Layout* L(cublasLtMatrixLayout_t d) { return reinterpret_cast<Layout*>(d); }
size_t esz(cudaDataType_t t) { return t == CUDA_R_32F ? 4 : t == CUDA_R_64F ? 8 : 2; }
double get(const void* p, cudaDataType_t t, int64_t i) { switch (t) { case CUDA_R_32F: return ((const float*)p)[i]; case CUDA_R_64F: return ((const double*)p)[i]; case CUDA_R_16F: return __half2float(((const __half*)p)[i]); default: return __bfloat162float(((const __nv_bfloat16*)p)[i]); } }
void put(void* p, cudaDataType_t t, int64_t i, double v) { switch (t) { case CUDA_R_32F: ((float*)p)[i] = float(v); break; case CUDA_R_64F: ((double*)p)[i] = v; break; case CUDA_R_16F: ((__half*)p)[i] = __float2half(float(v)); break; default: ((__nv_bfloat16*)p)[i] = __float2bfloat16(float(v)); } }
}
extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { *h = new cublasLtContext; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { delete h; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t c, cudaDataType_t s) { *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{c, s}); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { delete D(d); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* b, size_t n) {
  auto rd = [&](void* p, size_t k) { if (n != k) return CUBLAS_STATUS_INVALID_VALUE; std::memcpy(p, b, k); return CUBLAS_STATUS_SUCCESS; };
  switch (a) { case CUBLASLT_MATMUL_DESC_TRANSA: return rd(&D(d)->ta, 4); case CUBLASLT_MATMUL_DESC_TRANSB: return rd(&D(d)->tb, 4);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return rd(&D(d)->epi, 4); case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return rd(&D(d)->bias, 8);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return rd(&D(d)->bias_t, 4); default: return CUBLAS_STATUS_NOT_SUPPORTED; }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, uint64_t r, uint64_t c, int64_t ld) { *l = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{t, r, c, ld}); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { delete L(l); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void* b, size_t) {
  switch (a) { case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: L(l)->batch = *(const int32_t*)b; break; case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: L(l)->stride = *(const int64_t*)b; break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER: L(l)->order = *(const int32_t*)b; break; default: return CUBLAS_STATUS_NOT_SUPPORTED; } return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d_, const void* alpha, const void* A, cublasLtMatrixLayout_t a_, const void* B, cublasLtMatrixLayout_t b_, const void* beta,
                              const void* C, cublasLtMatrixLayout_t c_, void* Dd, cublasLtMatrixLayout_t o_, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t s) {
  Desc d = *D(d_); Layout a = *L(a_), b = *L(b_), c = *L(c_), o = *L(o_);
  const uint64_t m = d.ta ? a.c : a.r, k = d.ta ? a.r : a.c, k2 = d.tb ? b.c : b.r, n = d.tb ? b.r : b.c;
  if (k != k2 || o.r != m || o.c != n || c.r != m || c.c != n) return CUBLAS_STATUS_INVALID_VALUE;      // the shape errors a wrong row/col-major call makes
  for (auto* l : {&a, &b, &c, &o}) if (l->order != CUBLASLT_ORDER_COL || l->ld < int64_t(l->r)) return CUBLAS_STATUS_INVALID_VALUE;
  if (d.ct == CUBLAS_COMPUTE_16F && a.t != CUDA_R_16F) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (auto* p : {A, B, (const void*)Dd}) if (fake::device_of(p) < 0) return CUBLAS_STATUS_INVALID_VALUE;   // host pointer passed
  if ((reinterpret_cast<uintptr_t>(A) | reinterpret_cast<uintptr_t>(B) | reinterpret_cast<uintptr_t>(Dd)) & (esz(a.t) - 1)) return CUBLAS_STATUS_INVALID_VALUE;
  const double al = get(alpha, d.st, 0), be = get(beta, d.st, 0);                                         // host scalars are read at call time
  fake::enqueue(s, [=] {
    for (int bt = 0; bt < o.batch; bt++) {
      const char* pa = (const char*)A + bt * a.stride * esz(a.t); const char* pb = (const char*)B + bt * b.stride * esz(b.t);
      const char* pc = (const char*)C + bt * c.stride * esz(c.t); char* po = (char*)Dd + bt * o.stride * esz(o.t);
      for (uint64_t j = 0; j < n; j++) for (uint64_t i = 0; i < m; i++) {
        double acc = 0;
        for (uint64_t p = 0; p < k; p++) acc += get(pa, a.t, d.ta ? p + i * a.ld : i + p * a.ld) * get(pb, b.t, d.tb ? j + p * b.ld : p + j * b.ld);
        double v = al * acc + (be != 0 ? be * get(pc, c.t, i + j * c.ld) : 0);                            // beta==0 must not read C
        if (d.epi & CUBLASLT_EPILOGUE_BIAS) v += get(d.bias, d.bias_t < 0 ? o.t : cudaDataType_t(d.bias_t), i);    // bias runs along rows of D (column-major!)
        if (d.epi & CUBLASLT_EPILOGUE_RELU) v = v > 0 ? v : 0;
        if (d.epi & CUBLASLT_EPILOGUE_GELU) v = 0.5 * v * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
        put(po, o.t, i + j * o.ld, v);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}
}
