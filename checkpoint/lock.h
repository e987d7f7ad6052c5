#pragma once
// DIR/lock lets only one job at a time save into a folder. A kernel lock (flock) on this file ends with the process
// that holds it. The file's text names the job that holds the lock: for people, and because on some file systems other
// hosts do not see the kernel lock.
#include <functional>
#include <string>

#include "data/file_calls.h"
#include "dist/net.h"
#include "tensor/maker.h"

namespace lockstep::checkpoints {

/// Holds the lock of a folder during its lifetime.
class FolderLock {
 public:
  /// Takes the lock, or raises an Error that names its holder. A lock left by an ended job of this host is taken over,
  /// and `warn` is called; a lock left by a job of another host is taken over only with `take_over`.
  FolderLock(data::Files& files, const std::string& dir, bool take_over,
             const std::function<void(const std::string&)>& warn);
  ~FolderLock();

 private:
  data::Files& files_;
  std::string path_;
  dist::Fd fd_;
  Maker maker_;
};

}  // namespace lockstep::checkpoints
