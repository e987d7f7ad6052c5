#pragma once
// DIR/lock lets only one job at a time save into a folder. It is a kernel lock (flock), which ends with its process.
// The file's text says who holds it, for people, and for file systems whose locks other hosts do not see.
#include <functional>
#include <string>

#include "data/file_calls.h"
#include "dist/net.h"
#include "tensor/maker.h"

namespace lockstep::checkpoints {

/// Holds the lock of a folder during its lifetime.
class FolderLock {
 public:
  /// Error that names the holder. A lock left by an ended job of this host is taken over, and `warn` is called; one of
  /// another host only with `take_over`.
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
