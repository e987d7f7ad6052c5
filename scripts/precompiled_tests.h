// What every test includes of others, compiled once for all suites (meson.build).
#include <doctest/doctest.h>

#include "precompiled.h"
