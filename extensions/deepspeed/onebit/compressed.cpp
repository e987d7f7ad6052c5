// The compressed all-reduce. See compressed.h.
#include "extensions/deepspeed/onebit/compressed.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "extensions/deepspeed/onebit/signs.h"
#include "tensor/ops.h"

namespace lockstep::onebit {

namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Reads scale i of a message. A message holds the signs of a chunk's elements, one bit each, followed by the chunk's
// scales, which need not be aligned.
float read_scale(const uint8_t* message, int64_t chunk, size_t i) {
  float scale;
  std::memcpy(&scale, message + chunk / 8 + i * sizeof scale, sizeof scale);
  return scale;
}

}  // namespace

CompressedAllReduce::CompressedAllReduce(std::vector<int64_t> sizes, dist::ProcessGroup& group, const Options& options)
    : sizes_(std::move(sizes)), group_(group), options_(options) {
  std::vector<int64_t> offsets;  // start of each tensor in padded memory
  int64_t end = 0;
  for (const int64_t size : sizes_) {
    LOCKSTEP_CHECK(size >= 0, "[onebit] expected sizes of tensors, got ", size, "; give numbers of elements");
    offsets.push_back(end);
    end += round_up(size, 8);
  }
  const int64_t n = group.size();
  chunk_ = round_up(end, n * std::lcm(n, int64_t(8))) / n;
  size_t max_counts = 0;
  for (int64_t rank = 0; rank < n; ++rank) {
    Chunk& chunk = chunks_.emplace_back();
    const int64_t begin = rank * chunk_;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int64_t first = std::max(begin, offsets[i]), last = std::min(begin + chunk_, offsets[i] + sizes_[i]);
      if (first >= last) continue;
      if (options_.scale_per_tensor || chunk.counts.empty()) chunk.counts.push_back(0);
      chunk.counts.back() += last - first;
      chunk.pieces.push_back({i, first - offsets[i], first - begin, last - first, chunk.counts.size() - 1});
    }
    max_counts = std::max(max_counts, chunk.counts.size());
  }
  message_bytes_ = chunk_ / 8 + int64_t(max_counts * sizeof(float));
  if (n == 1) return;
  const MemoryScope scope(Memory::optimizer);
  worker_error_ = zeros({padded()}, {.device = cpu});
  server_error_ = zeros({chunk_}, {.device = cpu});
}

void CompressedAllReduce::check(const std::vector<Tensor>& tensors) const {
  LOCKSTEP_CHECK(tensors.size() == sizes_.size(), "[onebit] expected ", sizes_.size(), " tensors, got ", tensors.size(),
                 "; give a tensor for each of the constructor's sizes");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    LOCKSTEP_CHECK(
        t.defined() && t.dtype() == f32 && t.numel() == sizes_[i] && t.is_contiguous(),
        "[onebit] expected a row-major f32 tensor of ", sizes_[i], " elements, got ",
        t.defined() ? str(t.dtype(), " ", t.shape(), t.is_contiguous() ? "" : ", not row-major") : "an undefined one",
        "; pass .to(f32).contiguous() of a tensor of that size");
  }
}

/// Compresses a chunk. values(piece) is the address of the elements in `piece`, a tensor's part of the chunk, or null.
/// Adds the elements, if any, to `errors`, which holds the errors of the last compression. Writes signs and scales of
/// the sums to `message`, and leaves the errors of this compression in `errors`.
template <class Values>
void CompressedAllReduce::compress(const Chunk& chunk, float* errors, const Values& values, uint8_t* message) const {
  std::vector<double> sums(chunk.counts.size());
  for (const Piece& p : chunk.pieces) sums[p.scale] += add_error(values(p), errors + p.at, p.count, options_.scale);
  for (size_t i = 0; i < sums.size(); ++i) {
    const float scale = scale_of(sums[i], chunk.counts[i], options_.scale);
    std::memcpy(message + chunk_ / 8 + i * sizeof scale, &scale, sizeof scale);
  }
  for (const Piece& p : chunk.pieces)
    take_signs(errors + p.at, read_scale(message, chunk_, p.scale), p.count, message + p.at / 8);
}

void CompressedAllReduce::operator()(const std::vector<Tensor>& tensors, std::string_view tag) {
  check(tensors);
  const int64_t n = group_.size();
  if (n == 1) return;
  const MemoryScope scope(Memory::communication);
  std::vector<Tensor> on_host;
  for (const Tensor& t : tensors) on_host.push_back(t.to(cpu));
  const auto memory = [&](const Piece& p) { return on_host[p.tensor].data<float>() + p.from; };

  const Tensor sent = zeros({n * message_bytes_}, {.dtype = u8, .device = cpu}),
               received = empty({n * message_bytes_}, {.dtype = u8, .device = cpu});
  for (int64_t rank = 0; rank < n; ++rank) {
    compress(chunks_[size_t(rank)], worker_error_.data<float>() + rank * chunk_, memory,
             sent.data<uint8_t>() + rank * message_bytes_);
  }
  group_.all_to_all(received, sent, {.tag = tag});

  const Chunk& mine = chunks_[size_t(group_.rank())];
  float* sum = server_error_.data<float>();
  for (int64_t rank = 0; rank < n; ++rank) {
    const uint8_t* message = received.data<uint8_t>() + rank * message_bytes_;
    for (const Piece& p : mine.pieces)
      add_signs(message + p.at / 8, read_scale(message, chunk_, p.scale) / float(n), p.count, sum + p.at);
  }
  const Tensor part = sent.narrow(0, 0, message_bytes_);
  part.zero_();
  compress(
      mine, sum, [](const Piece&) -> const float* { return nullptr; }, part.data<uint8_t>());
  group_.all_gather(received, part, {.tag = tag});

  for (int64_t rank = 0; rank < n; ++rank) {
    const uint8_t* message = received.data<uint8_t>() + rank * message_bytes_;
    for (const Piece& p : chunks_[size_t(rank)].pieces)
      put_signs(message + p.at / 8, read_scale(message, chunk_, p.scale), p.count, memory(p));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (on_host[i].storage() == tensors[i].storage()) tensors[i].storage()->bump_version("onebit");
    else tensors[i].copy_(on_host[i]);
  }
}

}  // namespace lockstep::onebit
