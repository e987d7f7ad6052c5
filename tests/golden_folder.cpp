// The path of tests/golden. See golden_folder.h.
#include "tests/golden_folder.h"

#include <cstdlib>

const char* golden_folder() {
  const char* set = std::getenv("LOCKSTEP_GOLDEN_DIR");
  return set ? set : LOCKSTEP_GOLDEN_FOLDER;
}
