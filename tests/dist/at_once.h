#pragma once
// Runs rows of a test in parallel, if they mostly wait or use one core each.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

/// Calls fn(row) for every row on at most `threads` threads. An exception fails the test.
template <class Rows, class Fn> void at_once(const Rows& rows, const Fn& fn, size_t threads = 16) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (size_t i = 0; i < std::min(threads, std::size(rows)); ++i) {
    workers.emplace_back([&] {
      for (size_t row; (row = next++) < std::size(rows);) {
        try {
          fn(std::begin(rows)[row]);
        } catch (const std::exception& error) {
          FAIL_CHECK("row ", row, ": ", error.what());
        } catch (...) {  // a failed REQUIRE, which doctest has counted
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}
