// Offload to files: every I/O engine, failing disks, and no files left behind.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "tests/temp_dir.h"
#include "tests/zero/util.h"
#include "zero/offload/tile_ring.h"

using namespace lockstep;
using namespace testing;
using zero::AioOptions;
using zero::FileQueue;
using zero::Offload;
using zero::SwapFile;
using zero::ZeroOptions;
namespace fs = std::filesystem;

namespace {

/// A folder that must be empty at all times.
struct Folder : TempDir {
  Folder() : TempDir(disk()) {}
  ~Folder() { CHECK(fs::is_empty(path)); }
};

constexpr AioOptions::Engine both_engines[] = {AioOptions::Engine::automatic, AioOptions::Engine::threads};
std::vector<AioOptions> engines() {
  std::vector<AioOptions> all;
  for (const auto engine : both_engines) {
    all.push_back({.block_size = 1 << 16, .engine = engine});
    all.push_back({.block_size = 4096, .queue_depth = 1, .engine = engine});
    all.push_back({.block_size = 8192,
                   .queue_depth = 3,
                   .thread_count = 3,
                   .single_submit = true,
                   .overlap_events = false,
                   .engine = engine});
  }
  return all;
}

/// The descriptors of unlinked files in this folder.
std::vector<int> files_in(const std::string& folder) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().starts_with(folder + "/"))
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

constexpr int64_t page = 4096;

/// Aligned pages of bytes that depend on `seed`.
Tensor filled(int64_t pages, int64_t seed, bool locked = false) {
  const Tensor bytes = zero::aligned_bytes(pages * page, locked);
  auto* p = bytes.data<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) p[i] = uint8_t((i * 31 + i / page * 7 + seed) & 255);
  return bytes;
}
std::byte* bytes_in(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw_data()); }

/// Trains on `ranks` ranks with everything in files, and calls fault(rank, zero) before step 2. Returns the error,
/// which must reach all ranks; those without a fault get it in the next collective.
std::string error_of(const std::string& folder, const std::function<void(int, Zero&)>& fault, AioOptions aio = {},
                     int ranks = 2) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  message([&] {
    on_ranks(ranks, [&](int rank) {
      errors[size_t(rank)] = message([&] {
        NetOnZero on(all_in_files({.sub_group_size = 4096, .aio = aio, .param_persistence_threshold = 0}, folder));
        for (int step = 0; step < 4; ++step) {
          on.backward(step, rank);
          if (step == 2) fault(rank, on.zero);
          on.zero.step();
        }
      });
      if (errors[size_t(rank)] != "(no error)") fail(errors[size_t(rank)]);
    });
  });
  for (const std::string& error : errors) CHECK(error != "(no error)");
  for (const std::string& error : errors)
    if (contains(error, "[offload]")) return error;
  return errors[0];
}

}  // namespace

TEST_CASE("files: what is written is read, by every engine, in blocks of every size, of sizes from none to prime") {
  const Folder folder;
  for (const AioOptions& aio : engines()) {
    SwapFile file(folder.path, "a test", 300 * page, false);
    FileQueue queue(aio);
    const auto read = [&](int64_t at, const Tensor& to) { queue.read(file, at, bytes_in(to), to.numel()).wait(); };
    for (const int64_t pages : {0, 1, 2, 7, 16, 101}) {
      const Tensor out = filled(pages, pages), in = filled(pages, 255, true);
      queue.write(file, 13 * page, bytes_in(out), out.numel()).wait();
      read(13 * page, in);
      CHECK(equal(in, out));
      if (pages > 0) CHECK(equal(file.map(13 * page, pages * page, u8), out));
    }
    std::vector<Tensor> buffers;  // many requests at once
    std::vector<FileQueue::Transfer> transfers;
    for (int64_t i = 0; i < 40; ++i) {
      buffers.push_back(filled(5, i));
      transfers.push_back(queue.write(file, i * 5 * page, bytes_in(buffers.back()), 5 * page));
    }
    for (auto& t : transfers) t.wait();
    const Tensor all = zero::aligned_bytes(200 * page, false);
    read(0, all);
    CHECK(equal(all, cat(buffers, 0)));
    file.map(page, 1024, f32).fill_(2.5);  // a write through the mapping is visible to the next read
    read(page, all.narrow(0, 0, page));
    CHECK(static_cast<float*>(all.raw_data())[1023] == 2.5f);
  }
}

TEST_CASE("files: the engine that is asked for, or an error") {
  CHECK(std::string(FileQueue({.engine = AioOptions::Engine::threads}).engine()) == "threads");
  const std::string error =
      message([] { CHECK(std::string(FileQueue({.engine = AioOptions::Engine::uring}).engine()) == "io_uring"); });
  CHECK((error == "(no error)" || contains(error, "set engine to automatic or threads")));
}

TEST_CASE("files: tiles come in order, changed and written back, with any number of buffers") {
  const Folder folder;
  for (const int count : {1, 2, 3, 8}) {
    for (const bool ahead : {true, false}) {
      for (const int64_t tiles : {0, 1, 2, 5, 17}) {
        const SwapFile file(folder.path, "a test", std::max<int64_t>(tiles, 1) * 3 * 4096, true);
        FileQueue queue({.queue_depth = 4});
        zero::TileRing ring(
            queue, {.buffer_count = count, .pipeline_read = ahead, .pipeline_write = !ahead || count > 2}, 2 * 4096);
        for (int pass = 1; pass <= 3; ++pass) {
          std::vector<std::vector<zero::Extent>> walk;
          for (int64_t i = 0; i < tiles; ++i)
            walk.push_back({{&file, i * 3 * 4096, 0, 4096}, {&file, (i * 3 + 2) * 4096, 4096, 4096}});
          ring.begin(walk);
          for (int64_t i = 0; i < tiles; ++i) {
            auto* values = static_cast<int64_t*>(ring.load().raw_data());
            for (int64_t k = 0; k < 1024; ++k) values[k] += i + k;
            ring.store();
          }
          ring.end();
          CHECK_ERROR(ring.load(), "one more");
          for (int64_t i = 0; i < tiles; ++i) {
            const Tensor a = file.map(i * 3 * 4096, 512, i64), gap = file.map((i * 3 + 1) * 4096, 512, i64),
                         b = file.map((i * 3 + 2) * 4096, 512, i64);
            CHECK((a.data<int64_t>()[511] == pass * (i + 511) && gap.data<int64_t>()[5] == 0 &&
                   b.data<int64_t>()[0] == pass * (i + 512)));
          }
        }
      }
    }
  }
}

TEST_CASE("files: more than the disk has room for is refused at once, with both sizes") {
  const Folder folder;
  const std::string error = message([&] { SwapFile(folder.path, "a test", int64_t(1) << 60, false); });
  CHECK_MESSAGE(contains(error, "a test needs 1152921504606846976 bytes, but in " + folder.str() + " only "), error);
  CHECK(contains(error, " are free"));
}

TEST_CASE("files: a disk that is full, broken or short is named on all ranks, with file, offset and sizes") {
  const Folder folder;
  for (const auto engine : both_engines) {
    for (const auto& [error, text] : {std::pair{ENOSPC, "got No space left on device"},
                                      {EIO, "got Input/output error"},
                                      {0, "the file is shorter than it was made"}}) {
      for (const int64_t n : {1, 2, 5, 9, 14}) {
        const std::string what = error_of(folder.path,
                                          [&, e = error](int rank, Zero&) {
                                            if (rank == 1) zero::fail_request_after(n, e);
                                          },
                                          {.engine = engine});
        zero::fail_request_after(0, 0);
        CAPTURE(n);
        // A short write: the error has the number of bytes.
        CHECK_MESSAGE((contains(what, text) || (error == 0 && contains(what, "got 0 written"))), what);
        CHECK_MESSAGE((contains(what, " of rank ") && contains(what, " in " + folder.str() + ", offset ") &&
                       contains(what, "bytes, got ")),
                      what);
      }
    }
    const std::string what = error_of(folder.path,
                                      [&](int rank, Zero& z) {
                                        z.group().barrier();
                                        if (rank == 0)
                                          for (const int fd : files_in(folder.path)) CHECK(ftruncate(fd, 4096) == 0);
                                        z.group().barrier();
                                      },
                                      {.engine = engine});
    CHECK_MESSAGE(contains(what, "the file is shorter than it was made"), what);
  }
  const std::string what = error_of(
      folder.path,
      [&](int, Zero& z) {
        for (const int fd : files_in(folder.path)) CHECK(ftruncate(fd, 4096) == 0);
        z.state();
      },
      {}, 1);
  CHECK_MESSAGE(contains(what, "was it truncated?"), what);
}

TEST_CASE("files: have no name while they are used, and a process that is killed leaves none") {
  const Folder folder;
  const std::string error = message([&] {
    dist::spawn(2,
                [&](int rank) {
                  NetOnZero on(all_in_files({}, folder.path));
                  for (const int step : {0, 1}) on.train(step);
                  LOCKSTEP_CHECK(files_in(folder.path).size() == 2 && fs::is_empty(folder.path),
                                 "expected two files without a name");
                  if (rank == 1) raise(SIGKILL);
                  on.backward(3, rank);
                },
                {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(60)});
  });
  CHECK_MESSAGE(!contains(error, "expected two files"), error);
  CHECK(error != "(no error)");
}
