// --trace-bits: hashes parameters, merges the ranks' hashes, and writes them. See bits.h.
#include "train/bits.h"

#include <fmt/format.h>
#include <sodium.h>

#include <bit>
#include <cstring>

#include "data/json.h"
#include "dist/numbers.h"
#include "tensor/ops.h"

namespace lockstep::train {

using data::Json;

uint64_t hash_of(const Tensor& tensor) {
  LOCKSTEP_CHECK(sodium_init() >= 0, "libsodium cannot be initialised; install it again");
  const Tensor flat = tensor.to(cpu).contiguous();
  unsigned char digest[crypto_generichash_BYTES_MIN];
  crypto_generichash(digest, sizeof digest, static_cast<const unsigned char*>(flat.raw_data()),
                     size_t(flat.numel() * size_of(flat.dtype())), nullptr, 0);
  uint64_t hash;
  std::memcpy(&hash, digest, sizeof hash);
  return hash;
}

std::vector<int64_t> merge_hashes(const Team& team, const std::vector<std::string>& names,
                                  const std::vector<int64_t>& mine, int64_t step) {
  if (!team.group()) return mine;
  const int64_t n = int64_t(mine.size());
  const std::vector<int64_t> all = dist::all_gathered(mine, *team.group(), {.tag = "hashes"});
  std::vector<int64_t> merged(size_t(n), 0), holder(size_t(n), 0);
  for (int64_t rank = 0; rank < team.size(); ++rank) {
    for (int64_t p = 0; p < n; ++p) {
      const int64_t theirs = all[size_t(rank * n + p)];
      int64_t& hash = merged[size_t(p)];
      if (hash == 0) holder[size_t(p)] = rank;
      LOCKSTEP_CHECK(theirs == 0 || hash == 0 || theirs == hash, "after step ", step, " ranks ", holder[size_t(p)],
                     " and ", rank, " hold different bits in ", names[size_t(p)],
                     "; look for a change of parameters that not all ranks make");
      if (theirs != 0) hash = theirs;
    }
  }
  return merged;
}

void write_trace_line(OutputFile& out, int64_t step, double loss, DType products, const std::vector<std::string>& names,
                      const std::vector<int64_t>& hashes) {
  if (!out.is_open()) return;
  Json line(Json::Object{});
  line["step"] = step;
  line["loss"] = fmt::format("{:016x}", std::bit_cast<uint64_t>(loss));
  line["dtype"] = std::string(name_of(products));
  Json::Object tensors;
  for (size_t p = 0; p < hashes.size(); ++p)
    tensors.emplace_back(names[p], fmt::format("{:016x}", uint64_t(hashes[p])));
  line["parameters"] = std::move(tensors);
  LOCKSTEP_CHECK(out.add(line.dump() + "\n"), "--trace-bits: writing failed; free some disk space");
}

}  // namespace lockstep::train
