// The kernels of optimizer steps on each device. See step_kernels.h.
#include "optim/step_kernels.h"

namespace lockstep::kernels {

constinit const Op<AdamKernel> adam{"adam", on_cpu::adam, LOCKSTEP_ON_CUDA(on_cuda::adam)};
constinit const Op<SgdKernel> sgd{"sgd", on_cpu::sgd, LOCKSTEP_ON_CUDA(on_cuda::sgd)};
constinit const Op<StoreNumbers> store_numbers{"store_numbers", nullptr, LOCKSTEP_ON_CUDA(on_cuda::store_numbers)};
constinit const Op<SquareSums> square_sums{"square_sums", nullptr, LOCKSTEP_ON_CUDA(on_cuda::square_sums)};
constinit const Op<AddSums> add_sums{"add_sums", nullptr, LOCKSTEP_ON_CUDA(on_cuda::add_sums)};
constinit const Op<TakeNorm> take_norm{"take_norm", nullptr, LOCKSTEP_ON_CUDA(on_cuda::take_norm)};

}  // namespace lockstep::kernels
