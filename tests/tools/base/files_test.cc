#include "tools/base/files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <unistd.h>

#include "sim/base/error.h"
#include "sim/base/json.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A directory that goes away with the test.
class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "stepcast-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    unsetenv("STEPCAST_CONFIGS");
    fs::remove_all(directory_);
  }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  void make_devices(std::initializer_list<const char*> names) {
    fs::create_directories(directory_ / "devices");
    for (const char* name : names) write_file(path(std::string("devices/") + name), "{}");
    setenv("STEPCAST_CONFIGS", directory_.c_str(), 1);
  }

  fs::path directory_;
};

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Files, ReadsBackWhatItWroteWithEveryByte) {
  const std::string content("a\0b\r\n\xff", 6);
  write_file(path("x"), content);
  EXPECT_EQ(read_file(path("x")), content);
  write_file(path("x"), "");
  EXPECT_EQ(read_file(path("x")), "");
}

TEST_F(Files, LeavesNothingBesideTheFileThatItWrote) {
  write_file(path("x"), "1");
  write_file(path("x"), "2");
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(read_file(path("x")), "2");
}

TEST_F(Files, KeepsThePermissionsOfTheFileThatItReplaces) {
  write_file(path("x"), "1");
  fs::permissions(path("x"), fs::perms(0640));
  write_file(path("x"), "2");
  EXPECT_EQ(fs::status(path("x")).permissions(), fs::perms(0640));
}

TEST_F(Files, WritesThroughALinkAndKeepsIt) {
  write_file(path("target"), "1");
  fs::create_symlink("target", path("link"));
  write_file(path("link"), "2");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("target")), "2");
}

TEST_F(Files, LeavesADeviceADevice) {
  write_file("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Files, SaysWhichFileAndWhatIsWrongWithIt) {
  EXPECT_EQ(error_of([&] { read_file(path("none")); }), path("none") + ": there is no such file");
  EXPECT_EQ(error_of([&] { read_file(directory_.string()); }),
            directory_.string() + ": is a directory, not a file");
  EXPECT_EQ(error_of([&] { write_file(directory_.string(), "x"); }),
            directory_.string() + ": is a directory, not a file");
  EXPECT_EQ(error_of([&] { write_file(path("none/x"), "x"); }),
            path("none/x") + ": cannot write: No such file or directory");
  EXPECT_EQ(error_of([&] { write_file("/dev/full", "x"); }),
            "/dev/full: cannot write: No space left on device");
}

TEST_F(Files, EndsAnEndlessFileAtTheLimit) {
  EXPECT_EQ(error_of([] { read_file("/dev/zero"); }), "/dev/zero: is larger than 64 MiB");
}

TEST_F(Files, ListsTheNamesOfAKindInOrder) {
  make_devices({"b.json", "a.json", "notes.txt"});
  EXPECT_THAT(config_names("devices"), ElementsAre("a", "b"));
  EXPECT_THAT(config_names("profiles"), ElementsAre());
}

TEST_F(Files, SaysThatStepcastConfigsIsNoDirectory) {
  setenv("STEPCAST_CONFIGS", path("none").c_str(), 1);
  EXPECT_EQ(error_of([] { config_directory(); }),
            "STEPCAST_CONFIGS: \"" + path("none") + "\" is not a directory");
}

TEST_F(Files, FindsANameBySeveralSpellings) {
  make_devices({"a100-40gb.json", "a100-80gb.json", "h100-sxm.json", "h1000.json"});
  const std::string found = path("devices/h100-sxm.json");
  for (const char* name : {"h100-sxm", "H100-SXM", "h100_sxm", "H100SXM", "h100"}) {
    EXPECT_EQ(find_config("devices", name, "here"), found) << name;
  }
  EXPECT_EQ(find_config("devices", "A100 80GB", "here"), path("devices/a100-80gb.json"));
}

TEST_F(Files, NamesAllThatAShortNameMayMean) {
  make_devices({"a100-40gb.json", "a100-80gb.json", "h100-sxm.json"});
  EXPECT_EQ(error_of([] { find_config("devices", "a100", "f.json:3: device"); }),
            "f.json:3: device: \"a100\" may be any of the devices a100-40gb, a100-80gb; say which");
}

TEST_F(Files, SuggestsTheNearestName) {
  make_devices({"h100-sxm.json", "llama3.1-8b.json"});
  EXPECT_THAT(error_of([] { find_config("devices", "h100-smx", "here"); }),
              StartsWith("here: no device is called \"h100-smx\" (did you mean \"h100-sxm\"?)"));
  EXPECT_THAT(error_of([] { find_config("devices", "llama3-8", "here"); }),
              HasSubstr("did you mean \"llama3.1-8b\"?"));
  EXPECT_THAT(error_of([] { find_config("devices", "", "here"); }),
              StartsWith("here: no device is called \"\""));
}

TEST_F(Files, TakesAPathAsItIs) {
  EXPECT_EQ(find_config("devices", "my/h100", "here"), "my/h100");
  EXPECT_EQ(find_config("devices", "h100.json", "here"), "h100.json");
}

}  // namespace
}  // namespace stepcast
