#include "io/toml_table.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::string_view kText =
    "epochs = 50\n"
    "rate = 2e-5\n"
    "name = 'a run'\n"
    "fast = true\n"
    "sides = [512, [832, 480], 0.5]\n"
    "frames = [1, 33]\n"
    "words = ['a', \"b\"]\n"
    "\n"
    "[model]\n"
    "type = 'wan'\n"
    "[[directory]]\n"
    "path = 'x'\n"
    "[[directory]]\n"
    "path = 'y'\n";

TEST(TomlTable, GivesEveryKindOfValue) {
  const TomlFile file = TomlFile::parse(kText, "run.toml");
  const TomlTable t = file.root();
  EXPECT_EQ(t.require_integer("epochs"), 50);
  EXPECT_EQ(t.require_number("rate"), 2e-5);
  EXPECT_EQ(t.require_number("epochs"), 50.0);
  EXPECT_EQ(t.require_string("name"), "a run");
  EXPECT_EQ(t.boolean("fast", false), true);
  EXPECT_EQ(t.boolean("slow", true), true);
  EXPECT_EQ(t.integer("absent"), std::nullopt);
  EXPECT_THAT(t.number_rows("sides"),
              ElementsAre(ElementsAre(512), ElementsAre(832, 480), ElementsAre(0.5)));
  EXPECT_THAT(t.integers("frames"), ElementsAre(1, 33));
  EXPECT_THAT(t.numbers("frames"), ElementsAre(1, 33));
  EXPECT_THAT(t.strings("words"), ElementsAre("a", "b"));
  EXPECT_THAT(t.strings("absent"), IsEmpty());
  EXPECT_EQ(t.table("model")->require_string("type"), "wan");
  ASSERT_EQ(t.tables("directory").size(), 2u);
  EXPECT_EQ(t.tables("directory")[1].require_string("path"), "y");
  EXPECT_EQ(t.tables("directory")[1].name(), "directory 2");
  t.finish();
}

TEST(TomlTable, NamesFileLineKeyAndValueOfAWrongType) {
  const TomlFile file = TomlFile::parse(kText, "run.toml");
  const TomlTable t = file.root();
  EXPECT_FAILS(t.integer("name"), ErrorCode::input,
               "run.toml line 3: name: expected an integer, found \"a run\"");
  EXPECT_FAILS(t.integer("rate"), ErrorCode::input, "expected an integer");
  EXPECT_FAILS(t.boolean("epochs"), ErrorCode::input, "expected true or false, found 50");
  EXPECT_FAILS(t.strings("frames"), ErrorCode::input, "line 6: frames: expected a list of strings");
  EXPECT_FAILS(t.numbers("sides"), ErrorCode::input, "found a list of 2");
  EXPECT_FAILS(t.table("name"), ErrorCode::input, "expected a table");
  EXPECT_FAILS(t.tables("frames"), ErrorCode::input, "expected a list of tables, found 1");
  EXPECT_FAILS(t.table("model")->integer("type"), ErrorCode::input,
               "run.toml line 10: model.type: expected an integer, found \"wan\"");
  EXPECT_FAILS(t.require_string("dataset"), ErrorCode::input,
               "run.toml: the key dataset is missing");
  EXPECT_FAILS(t.table("model")->require_string("dtype"), ErrorCode::input,
               "run.toml [model]: the key dtype is missing");
  EXPECT_FAILS(TomlFile::parse("a = 1\ndatset = 'x'\n", "x").root().require_string("dataset"),
               ErrorCode::input, "x: the key dataset is missing; line 2 has \"datset\"");
  EXPECT_FAILS(TomlFile::parse("a = nan", "x").root().number("a"), ErrorCode::input, "finite");
}

TEST(TomlTable, FindsAKeyThatNobodyAskedFor) {
  const TomlFile file = TomlFile::parse("epocs = 1\n", "run.toml");
  const TomlTable t = file.root();
  (void)t.integer("epochs");
  EXPECT_FAILS(t.finish(), ErrorCode::input,
               "run.toml line 1: unknown key \"epocs\", did you mean epochs?");
  const TomlFile nested = TomlFile::parse("[model]\n\nrnak = 1\n", "run.toml");
  const TomlTable root = nested.root();
  const TomlTable model = *root.table("model");
  (void)model.integer("rank");
  EXPECT_FAILS(model.finish(), ErrorCode::input,
               "run.toml line 3: unknown key \"rnak\" in model, did you mean rank?");
}

TEST(TomlTable, NotesEachIgnoredKeyOnce) {
  const TomlFile file = TomlFile::parse("compile = true\nepochs = 3\n", "run.toml");
  const TomlTable t = file.root();
  (void)t.integer("epochs");
  const IgnoredKey ignored[] = {{"compile", "nothing is compiled"}, {"other", "no"}};
  std::vector<std::string> notes;
  t.finish(ignored, notes);
  EXPECT_THAT(notes, ElementsAre("compile (line 1): nothing is compiled"));
}

TEST(TomlTable, KeepsTheOrderOfTheFile) {
  const TomlFile file = TomlFile::parse("b = 1\na = 2\nc = 3\n", "x");
  EXPECT_THAT(file.root().keys(), ElementsAre("b", "a", "c"));
}

TEST(TomlFile, SaysWhereTheSyntaxIsWrong) {
  EXPECT_FAILS(TomlFile::parse("a = 1\nb = [1, 2\nc = 3\n", "run.toml"), ErrorCode::input,
               "run.toml line 3 column");
  EXPECT_FAILS(TomlFile::parse("a = 1\na = 2\n", "run.toml"), ErrorCode::input, "run.toml line 2");
  EXPECT_FAILS(TomlFile::parse("a = 'x\n", "run.toml"), ErrorCode::input, "run.toml line 1");
  EXPECT_FAILS(TomlFile::parse("a = \nb = 1\n", "run.toml"), ErrorCode::input,
               "the line ends here");
}

TEST(TomlFile, RefusesHostileText) {
  EXPECT_FAILS(TomlFile::parse("[%a]", "x"), ErrorCode::input, "x line 1 column 2");
  EXPECT_FAILS(TomlFile::parse("[[ %a]]", "x"), ErrorCode::input, "x line 1 column 4");
  EXPECT_FAILS(TomlFile::parse("a = '\xff'", "x"), ErrorCode::input,
               "line 1 column 6: the file is");
  EXPECT_FAILS(TomlFile::parse(std::string_view("a = 1\n\0", 7), "x"), ErrorCode::input,
               "line 2 column 1: a NUL byte");
  EXPECT_FAILS(TomlFile::parse("a = " + std::string(100'000, '['), "x"), ErrorCode::input,
               "x line 1");
  std::string braces = "a = ";
  for (int i = 0; i < 50'000; ++i) braces += "{a=";
  EXPECT_FAILS(TomlFile::parse(braces, "x"), ErrorCode::input, "x line 1");
  std::string dots = "a";
  for (int i = 0; i < 400'000; ++i) dots += ".a";
  EXPECT_FAILS(TomlFile::parse(dots + " = 1", "x"), ErrorCode::input,
               "a key of more than 32 parts");
  std::string quoted = "\"#\"";
  for (int i = 0; i < 100'000; ++i) quoted += " . '\\['";
  EXPECT_FAILS(TomlFile::parse("[" + quoted + "]", "x"), ErrorCode::input,
               "a key of more than 32 parts");
  // The fourth quote belongs to the text and opens nothing.
  EXPECT_FAILS(TomlFile::parse("a = {b = '''c'''', " + dots + " = 1}", "x"), ErrorCode::input,
               "a key of more than 32 parts");
  EXPECT_FAILS(TomlFile::parse(std::string(TomlFile::kMaxBytes + 1, '\n'), "x"), ErrorCode::input,
               "at most 1048576 are read");
}

TEST(TomlFile, KnowsWhiteSpaceFromLetters) {
  EXPECT_FAILS(TomlFile::parse("a = [2, \u0367]", "x"), ErrorCode::input, "x line 1 column 9");
  EXPECT_FAILS(TomlFile::parse("\u00e9 = 1", "x"), ErrorCode::input, "x line 1 column 1");
  EXPECT_EQ(TomlFile::parse("a = \"\"\"b \\\n  \u00e9\"\"\"", "x").root().string("a"), "b \u00e9");
  EXPECT_FAILS(TomlFile::parse("a = \"\"\"b\"\"\"\" \u00e9", "x"), ErrorCode::input,
               "x line 1 column 14");
}

TEST(TomlFile, TakesManyDotsInValuesAndComments) {
  std::string text = "# " + std::string(200, '.') + "\na = '" + std::string(200, '.') + "'\nb = [";
  for (int i = 0; i < 100; ++i) text += "1.5, ";
  text += "]\nc = \"\"\"\n\"" + std::string(100, '.') + "\"\"\"\n";
  const TomlFile file = TomlFile::parse(text, "x");
  EXPECT_EQ(file.root().string("a")->size(), 200u);
  EXPECT_EQ(file.root().numbers("b").size(), 100u);
  EXPECT_EQ(file.root().string("c")->size(), 101u);
}

TEST(TomlFile, ReadsAFileAndItsJsonTwin) {
  const test::TempDir dir;
  const TomlFile toml = TomlFile::read(dir.write("a.toml", "x = [1, 2.5]\n[g]\ns = 'q'\n"));
  const TomlFile json = TomlFile::read(
      dir.write("a.json", "{\"x\": [1, 2.5],\n \"none\": null,\n \"g\": {\"s\": \"q\"}}"));
  for (const TomlFile* file : {&toml, &json}) {
    const TomlTable t = file->root();
    EXPECT_THAT(t.numbers("x"), ElementsAre(1, 2.5));
    EXPECT_FAILS(t.integers("x"), ErrorCode::input, "found 2.5");
    EXPECT_EQ(t.table("g")->require_string("s"), "q");
    t.finish();
  }
  EXPECT_EQ(json.root().line_of("g"), 3);
  EXPECT_EQ(toml.text(), "x = [1, 2.5]\n[g]\ns = 'q'\n");
  EXPECT_FAILS(TomlFile::parse_json("{\"a\": 1, \"a\": 2}", "x.json"), ErrorCode::input,
               "the key \"a\" occurs twice");
  EXPECT_FAILS(TomlFile::parse_json("[1]", "x.json"), ErrorCode::input, "expected an object");
  EXPECT_FAILS(TomlFile::parse_json("{\"a\": 1e999}", "x.json"), ErrorCode::input, "x.json");
  EXPECT_FAILS(TomlFile::read(dir.path("missing.toml")), ErrorCode::io, "missing.toml");
  EXPECT_FAILS(TomlFile::read(dir.path()), ErrorCode::io, "");
}

}  // namespace
}  // namespace ballast
