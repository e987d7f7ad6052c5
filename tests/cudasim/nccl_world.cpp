// Shared memory for the ranks of a fake NCCL communicator.
#include "tests/cudasim/nccl_world.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/runtime.h"

namespace fake {
namespace {

template <class T> T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return T(a * b);
    case ncclMax: return a < b ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return T(a + b);
  }
}
template <class T>
void reduce(const std::vector<const char*>& parts, size_t first, size_t count, ncclRedOp_t op, void* out) {
  for (size_t i = 0; i < count; ++i) {
    T sum = reinterpret_cast<const T*>(parts[0])[first + i];
    for (size_t r = 1; r < parts.size(); ++r) sum = combine(sum, reinterpret_cast<const T*>(parts[r])[first + i], op);
    if (op == ncclAvg) sum = T(sum / T(int(parts.size())));
    static_cast<T*>(out)[i] = sum;
  }
}

SpinLock made_lock;
std::map<std::string, int>& made() {
  static auto& all = *new std::map<std::string, int>;
  return all;
}

}  // namespace

std::string World::make() {
  static std::atomic<int> number{0};  // makes ids unique: descriptors are reused
  const int fd = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(bytes)) != 0) return "";
  const std::string id = "fake " + std::to_string(getpid()) + " " + std::to_string(fd) + " " + std::to_string(++number);
  const std::lock_guard lock(made_lock);
  made()[id] = fd;
  return id;
}

void World::close(const std::string& id) {
  const std::lock_guard lock(made_lock);
  const auto found = made().find(id);
  if (found == made().end() || id.find("fake " + std::to_string(getpid()) + " ") != 0)
    return;  // a forked process has the parent's list
  ::close(found->second);
  made().erase(found);
}

std::shared_ptr<World> World::open(const std::string& id) {
  int process = 0, number = 0;
  if (std::sscanf(id.c_str(), "fake %d %d", &process, &number) != 2) return nullptr;
  const int fd =
      ::open(("/proc/" + std::to_string(process) + "/fd/" + std::to_string(number)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  simt::begin_ignore();
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  simt::end_ignore();
  ::close(fd);
  if (base == MAP_FAILED) return nullptr;
  return std::shared_ptr<World>(new World(static_cast<char*>(base)));
}

World::~World() { munmap(base_, bytes); }

void World::fail(const std::string& why) {
  int none = 0;
  if (!header().failed.compare_exchange_strong(none, 1)) return;
  std::snprintf(header().why, sizeof header().why, "%s", why.c_str());
  std::fprintf(stderr, "cudasim: nccl: %s\n", why.c_str());
  header().failed = 2;
}

void reduce(ncclDataType_t type, const std::vector<const char*>& parts, size_t first, size_t count, ncclRedOp_t op,
            void* out) {
  switch (type) {
    case ncclInt8: return reduce<int8_t>(parts, first, count, op, out);
    case ncclUint8: return reduce<uint8_t>(parts, first, count, op, out);
    case ncclInt32: return reduce<int32_t>(parts, first, count, op, out);
    case ncclUint32: return reduce<uint32_t>(parts, first, count, op, out);
    case ncclInt64: return reduce<int64_t>(parts, first, count, op, out);
    case ncclUint64: return reduce<uint64_t>(parts, first, count, op, out);
    case ncclFloat16: return reduce<__half>(parts, first, count, op, out);
    case ncclBfloat16: return reduce<__nv_bfloat16>(parts, first, count, op, out);
    case ncclFloat32: return reduce<float>(parts, first, count, op, out);
    default: return reduce<double>(parts, first, count, op, out);
  }
}

}  // namespace fake
