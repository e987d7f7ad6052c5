// Data parallelism in two functions: one for the start, one to call after each backward. See naive_ddp.h.
#include "parallel/naive_ddp.h"

#include "nn/init.h"

namespace lockstep::parallel {

void broadcast_module(nn::Module& module, dist::ProcessGroup& group, int root,
                      const std::function<bool(const std::string& name)>& ignore) {
  const auto send = [&](const std::string& name, const Tensor& tensor) {
    if (ignore && ignore(name)) return;
    const Tensor dense = tensor.contiguous();
    group.broadcast(dense, root, {.tag = name});
    if (dense.storage() != tensor.storage()) tensor.copy_(dense);
  };
  for (auto& p : module.named_parameters()) {
    if (!ignore || !ignore(p.name)) nn::fill(p.variable);
    send(p.name, p.variable.tensor());
  }
  for (auto& b : module.named_buffers()) send(b.name, b.tensor);
}

void average_gradients(nn::Module& module, dist::ProcessGroup& group) {
  for (auto& p : module.named_parameters()) {
    if (!p.variable.requires_grad()) continue;
    if (!p.variable.checked_grad("average_gradients").defined())
      p.variable.grad() = zeros(p.variable.shape(), {.dtype = p.variable.dtype(), .device = p.variable.device()});
    group.all_reduce(p.variable.grad(), {.op = dist::ReduceOp::mean, .tag = p.name});
  }
}

}  // namespace lockstep::parallel
