// Headers that the tests share. meson.build compiles them once.
#include <doctest/doctest.h>

#include "precompiled.h"
