// Checks of offload options. See options.h.
#include "zero/offload/options.h"

#include "base/check.h"
#include "zero/offload/swap_file.h"

namespace lockstep::zero {
namespace {

void check_device(const char* key, Offload device, const std::string& path) {
  LOCKSTEP_CHECK(int(device) <= int(Offload::nvme), "[zero] expected ", key, ".device none, cpu or nvme, got ",
                 int(device));
  LOCKSTEP_CHECK(device != Offload::nvme || !path.empty(), "[zero] ", key, ".device nvme needs ", key,
                 ".nvme_path, a folder on a local disk");
}

}  // namespace

std::string_view name_of(Offload device) {
  constexpr std::string_view names[] = {"none", "cpu", "nvme"};
  return names[int(device)];
}

void check(const OffloadOptimizer& o, int stage) {
  check_device("offload_optimizer", o.device, o.nvme_path);
  LOCKSTEP_CHECK(o.buffer_count >= 1, "[zero] expected offload_optimizer.buffer_count >= 1, got ", o.buffer_count);
  LOCKSTEP_CHECK(o.ratio >= 0 && o.ratio <= 1, "[zero] expected offload_optimizer.ratio from 0 to 1, got ", o.ratio);
  LOCKSTEP_CHECK(o.ratio == 1 || stage == 3, "[zero] offload_optimizer.ratio ", o.ratio, " needs stage 3, got stage ",
                 stage, "; set it to 1, or take stage 3");
}

void check(const OffloadParam& o, int stage) {
  check_device("offload_param", o.device, o.nvme_path);
  LOCKSTEP_CHECK(o.device == Offload::none || stage == 3,
                 "[zero] offload_param needs stage 3 (below it every rank keeps all parameters), got stage ", stage,
                 "; set stage 3, or offload_param.device none");
  LOCKSTEP_CHECK(o.buffer_count >= 1 && o.buffer_size >= 1 && o.max_in_cpu >= 0,
                 "[zero] expected offload_param.buffer_count >= 1, buffer_size >= 1 and max_in_cpu >= 0, got ",
                 o.buffer_count, ", ", o.buffer_size, " and ", o.max_in_cpu);
}

void check(const AioOptions& o) {
  LOCKSTEP_CHECK(o.block_size >= file_block && o.block_size % file_block == 0 && o.block_size <= 1 << 30,
                 "[aio] expected block_size to be a multiple of ", file_block, " up to 1 GiB, got ", o.block_size);
  LOCKSTEP_CHECK(o.queue_depth >= 1 && o.queue_depth <= 1024, "[aio] expected queue_depth from 1 to 1024, got ",
                 o.queue_depth);
  LOCKSTEP_CHECK(o.thread_count >= 1 && o.thread_count <= 64, "[aio] expected thread_count from 1 to 64, got ",
                 o.thread_count);
}

}  // namespace lockstep::zero
