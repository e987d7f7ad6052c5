// Starts the tests of a folder. LOCKSTEP_TEST_DEVICE=cuda makes it the default device, so that the same tests run there.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>

#include "tensor/device.h"

int main(int argc, char** argv) {
  if (const char* name = std::getenv("LOCKSTEP_TEST_DEVICE")) {
    try {
      lockstep::set_default_device(lockstep::parse_device(name));
    } catch (const std::exception& error) {
      std::cerr << "LOCKSTEP_TEST_DEVICE: " << error.what() << "\n";
      return 2;
    }
  }
  return doctest::Context(argc, argv).run();
}
