#pragma once
// DIR/lock: one job saves into a folder at a time. The lock is the kernel's (flock), so that it ends with its process;
// the file says who has it, for people and for file systems whose locks other hosts do not see.
#include <functional>
#include <string>

#include "data/file_calls.h"
#include "dist/net.h"
#include "tensor/maker.h"

namespace lockstep::checkpoints {

class FolderLock {
 public:
  /// Error that says who has it. One that an ended job of this host has left is taken, and `warn` is told; one of
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
