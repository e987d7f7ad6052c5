#pragma once
// File operations with injected faults.
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "data/file_calls.h"

namespace testing {

/// Passes operations to the system; the k-th operation, or all from there on, meet the fault. Thread-safe. shorten
/// writes half of the bytes; kill ends the process with exit code 137.
class FaultyCalls : public lockstep::data::FileCalls {
 public:
  /// none; the k-th call fails; all from the k-th on fail; writes from the k-th on are short; the k-th kills.
  enum class Fault { none, fail, fail_from, shorten, kill };
  FaultyCalls() = default;
  FaultyCalls(Fault fault, int64_t k, int error = EIO) : fault_(fault), k_(k), error_(error) {}
  int64_t calls() const { return calls_; }
  /// Ends the fault.
  void repair() { repaired_ = true; }

  int open(const char* path, int flags) override { return hit() ? -1 : FileCalls::open(path, flags); }
  int64_t write(int fd, const std::byte* data, size_t bytes, int64_t offset) override {
    if (hit()) return -1;
    const bool now = !repaired_ && fault_ == Fault::shorten && bytes > 1 && calls_ >= k_;
    return FileCalls::write(fd, data, now ? (bytes + 1) / 2 : bytes, offset);
  }
  // does not flush: tests simulate no power cut here, and flushing is slow
  int sync(int) override { return hit() ? -1 : 0; }
  int close(int fd) override {
    const bool failed = hit();
    const int error = errno, result = FileCalls::close(fd);  // close() releases fd even if it fails
    return failed ? errno = error, -1 : result;
  }
  int rename(const char* from, const char* to) override { return hit() ? -1 : FileCalls::rename(from, to); }
  int make_folder(const char* path) override { return hit() ? -1 : FileCalls::make_folder(path); }
  int remove(const char* path) override { return hit() ? -1 : FileCalls::remove(path); }
  int remove_folder(const char* path) override { return hit() ? -1 : FileCalls::remove_folder(path); }
  int lock(int fd) override { return hit() ? -1 : FileCalls::lock(fd); }

 private:
  bool hit() {
    ++calls_;
    if (repaired_) return false;
    if (fault_ == Fault::kill && calls_ == k_) ::_exit(137);
    const bool now = (fault_ == Fault::fail && calls_ == k_) || (fault_ == Fault::fail_from && calls_ >= k_);
    if (now) errno = error_;
    return now;
  }
  Fault fault_ = Fault::none;
  int64_t k_ = 0;
  int error_ = 0;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> repaired_{false};
};

}  // namespace testing
