// Elements of SVG pictures, also where numbers are written with a comma.
#include "extensions/svg/svg.h"

#include <doctest/doctest.h>

using namespace lockstep;

TEST_CASE("pictures: texts cannot end an element") {
  CHECK(escaped("a<b>&\"\x01") == "a&lt;b&gt;&amp;&quot;\xef\xbf\xbd");
  CHECK(svg::text(1, 2, "<", 12, "red") ==
        "<text x=\"1\" y=\"2\" font-size=\"12\" fill=\"red\" text-anchor=\"start\">&lt;</text>\n");
}

TEST_CASE("pictures: numbers have a point") {
  CHECK(svg::rect(0.5, 1, 2, 3, "").find("x=\"0.5\"") != std::string::npos);
}
