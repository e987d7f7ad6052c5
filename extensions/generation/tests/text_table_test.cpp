// Texts from JSON Lines, JSON lists and CSV.
#include "extensions/generation/text_table.h"

#include <doctest/doctest.h>

#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using testing::TempDir;
using Texts = std::vector<std::string>;

TEST_CASE("text tables: the column text, or the first one") {
  const TempDir d;
  const std::pair<const char*, const char*> rows[] = {
      {"a.jsonl", "{\"id\": 1, \"text\": \"one\"}\n\n{\"text\": \"two,\\n\\\"2\\\"\", \"id\": 2}\n"},
      {"b.json", "{\"text\": \"one\"}\n{\"text\": \"two,\\n\\\"2\\\"\"}"},
      {"c.json", " [{\"body\": \"one\", \"n\": 1},\n {\"body\": \"two,\\n\\\"2\\\"\", \"n\": 2}]\n"},
      {"d.csv", "id,text\n1,one\n2,\"two,\n\"\"2\"\"\"\n"},
      {"e.csv",
       "\xEF\xBB\xBF"
       "body,id\r\none,1\r\n\r\n\"two,\n\"\"2\"\"\",2"}};
  for (const auto& [name, content] : rows) {
    CAPTURE(name);
    CHECK(data::is_text_table(name));
    CHECK(data::read_text_table(d.write(name, content)) == Texts{"one", "two,\n\"2\""});
  }
  CHECK(!data::is_text_table("book.txt"));
  CHECK(!data::is_text_table("book.tokens"));
  CHECK(data::parse_text_csv("a,,\"\"\n,x\"y,z\n\"\",,", "t") ==
        std::vector<Texts>{{"a", "", ""}, {"", "x\"y", "z"}, {"", "", ""}});
  CHECK(data::parse_text_csv("\n\n", "t").empty());
}

TEST_CASE("text tables: errors name the file and the place") {
  const TempDir d;
  struct Row {
    const char *name, *content, *part;
  };
  for (const Row& row :
       std::vector<Row>{{"a.jsonl", "{\"text\": \"x\"}\n{\"body\": \"y\"}\n",
                         "a.jsonl:2: expected a text under the key text, got none"},
                        {"a.jsonl", "{\"text\": 5}\n", "a.jsonl:1: expected a text under the key text, got an integer"},
                        {"a.jsonl", "[1]\n", "a.jsonl:1: expected an object such as {\"text\": ...}, got a list"},
                        {"a.jsonl", "{\"text\": \"x\"\n", "a.jsonl:1"},
                        {"a.jsonl", "\n", "expected at least one row, got none"},
                        {"b.json", "[{\"text\": \"x\"}, {}]", "b.json: row 2: expected an object"},
                        {"c.csv", "text,id\none\n", "c.csv:2: expected 2 fields, as in the first row, got 1"},
                        {"c.csv", "text\n\"a\nb", "c.csv:2: expected a quote that closes the field"},
                        {"c.csv", "", "c.csv: expected a first row with the names of columns"},
                        {"c.csv", "text\n", "expected at least one row"}}) {
    CAPTURE(row.content);
    const std::string path = d.write(row.name, row.content);
    CHECK_ERROR(data::read_text_table(path), row.part);
  }
  CHECK_ERROR(data::read_text_table(d / "none.csv"), "none.csv");
}
