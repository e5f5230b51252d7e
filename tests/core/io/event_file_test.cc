#include <palimpsest/core/io/event_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The checksum of a record's part, bit by bit.
uint32_t slow_masked_check(std::string_view bytes) {
  uint32_t check = 0xffffffff;
  for (const char byte : bytes) {
    check ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      check = (check & 1) != 0 ? check >> 1 ^ 0x82f63b78 : check >> 1;
    }
  }
  check = ~check;
  return (check >> 15 | check << 17) + 0xa282ead8;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t index = bytes.size(); index-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[index]);
  }
  return number;
}

/// The payloads of a file's records; every checksum is compared.
std::vector<std::string> payloads(const fs::path& path) {
  const std::string file = read_file(path);
  std::vector<std::string> found;
  size_t at = 0;
  while (at < file.size()) {
    const std::string_view length = std::string_view(file).substr(at, 8);
    EXPECT_EQ(little_endian(file.substr(at + 8, 4)), slow_masked_check(length));
    found.push_back(file.substr(at + 12, little_endian(length)));
    at += 12 + found.back().size();
    EXPECT_EQ(little_endian(file.substr(at, 4)), slow_masked_check(found.back()));
    at += 4;
  }
  EXPECT_EQ(at, file.size());
  return found;
}

/// The fields of a message by number, without a schema.
std::map<int, std::vector<UnknownField>> fields(const UnknownFieldSet& set) {
  std::map<int, std::vector<UnknownField>> found;
  for (int index = 0; index < set.field_count(); ++index) {
    found[set.field(index).number()].push_back(set.field(index));
  }
  return found;
}

struct Event {
  double wall_time = 0;
  uint64_t step = 0;
  std::string version;
  uint64_t session = 0; // 1: START
  std::map<std::string, float> scalars;
};

std::vector<Event> events(const fs::path& path) {
  std::vector<Event> found;
  for (const std::string& payload : payloads(path)) {
    UnknownFieldSet set;
    EXPECT_TRUE(set.ParseFromString(payload));
    Event& event = found.emplace_back();
    for (const auto& [number, all] : fields(set)) {
      EXPECT_EQ(all.size(), 1U) << number;
      const UnknownField& field = all[0];
      UnknownFieldSet inner;
      if (number == 1) {
        event.wall_time = std::bit_cast<double>(field.fixed64());
      } else if (number == 2) {
        event.step = field.varint();
      } else if (number == 3) {
        event.version = field.length_delimited();
      } else if (number == 5 && inner.ParseFromString(field.length_delimited())) {
        const auto summary = fields(inner);
        for (const UnknownField& value : summary.at(1)) {
          UnknownFieldSet pair;
          EXPECT_TRUE(pair.ParseFromString(value.length_delimited()));
          auto parts = fields(pair);
          event.scalars[parts[1].at(0).length_delimited()] =
              std::bit_cast<float>(parts[2].at(0).fixed32());
        }
      } else if (number == 7 && inner.ParseFromString(field.length_delimited())) {
        event.session = fields(inner)[1].at(0).varint();
      } else {
        ADD_FAILURE() << "field " << number;
      }
    }
  }
  return found;
}

class EventFileTest : public ::testing::Test {
 protected:
  ~EventFileTest() override {
    fs::remove_all(folder_);
  }
  /// Those of the folder in the order in which readers take them.
  std::vector<fs::path> files() const {
    const std::set<fs::path> sorted(fs::directory_iterator(logs_), {});
    return {sorted.begin(), sorted.end()};
  }
  /// The steps that the whole folder has values of.
  std::vector<uint64_t> steps() const {
    std::vector<uint64_t> found;
    for (const fs::path& file : files()) {
      for (const Event& event : events(file)) {
        if (!event.scalars.empty()) {
          found.push_back(event.step);
        }
      }
    }
    return found;
  }
  /// A run's process that does the steps from `first` to `last`.
  fs::path run(int64_t first, int64_t last) const {
    EventFile file(logs_, first);
    for (int64_t step = first; step <= last; ++step) {
      file.write(step, {{"loss", 10.0 * static_cast<double>(first) + 1}});
    }
    return file.path();
  }

  fs::path folder_ = make_temporary_folder();
  fs::path logs_ = folder_ / "not" / "yet" / "there";
};

TEST_F(EventFileTest, IsWhatTheFormatSays) {
  const double before =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EventFile file(logs_, 1);
  EXPECT_THAT(file.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
  file.write(7, {{"train/loss", 0.1}, {"train/rate", 2e-5}});
  const std::vector<Event> found = events(file.path()); // although it is open still
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].version, "brain.Event:2");
  EXPECT_EQ(found[1].session, 1U);
  EXPECT_EQ(found[1].step, 1U);
  EXPECT_EQ(found[2].step, 7U);
  EXPECT_EQ(
      found[2].scalars,
      (std::map<std::string, float>{{"train/loss", 0.1F}, {"train/rate", 2e-5F}}));
  for (const Event& event : found) {
    EXPECT_GE(event.wall_time, before);
    EXPECT_LT(event.wall_time, before + 600);
  }
}

// As TensorFlow's own files begin: 24 bytes of a time and a version, and the checksum of "24".
TEST_F(EventFileTest, BeginsAsOthersDo) {
  EXPECT_EQ(
      read_file(run(1, 1)).substr(0, 13),
      std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09", 13));
}

TEST_F(EventFileTest, KeepsWhatIsNotFinite) {
  EventFile file(logs_, 1);
  file.write(1, {{"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}});
  auto scalars = events(file.path()).back().scalars;
  EXPECT_TRUE(std::isnan(scalars.at("nan")));
  EXPECT_EQ(scalars.at("inf"), std::numeric_limits<float>::infinity());
}

TEST_F(EventFileTest, ARunThatGoesOnHasEachStepOnceInTheOrderOfTheFiles) {
  const fs::path first = run(1, 5);
  const fs::path second = run(4, 6);
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(files().front(), first);
  EXPECT_EQ(files().back(), second);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(events(files().back())[1].step, 4U); // forgets from there on
  EXPECT_FLOAT_EQ(events(files().front()).back().scalars.at("loss"), 11);
  EXPECT_FLOAT_EQ(events(files().back())[2].scalars.at("loss"), 41);
  run(3, 3); // from before the second
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
}

// Killed in the middle of a record, or damaged: what was whole before stays.
TEST_F(EventFileTest, WhatIsTornIsDropped) {
  const fs::path path = run(1, 3);
  const std::string whole = read_file(path);
  const size_t record = 12 + payloads(path).back().size() + 4;
  for (const size_t kept :
       {whole.size() - 1, whole.size() - record + 13, whole.size() - record + 3}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, kept);
    run(4, 4);
    EXPECT_THAT(steps(), ElementsAre(1, 2, 4)) << kept;
    fs::remove(files().back());
  }
  std::string damaged = whole;
  damaged[whole.size() - record + 14] ^= 1;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
  run(4, 4);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 4));
}

TEST_F(EventFileTest, OtherFilesStayAsTheyAre) {
  fs::create_directories(logs_);
  std::ofstream(logs_ / "notes.txt") << "the user's";
  std::ofstream(logs_ / "events.out.tfevents.1.empty") << "";
  run(2, 2);
  EXPECT_EQ(read_file(logs_ / "notes.txt"), "the user's");
  EXPECT_EQ(files().size(), 3U);
  // A new run touches no other one's events.
  const std::string before = read_file(files().at(1));
  run(1, 1);
  EXPECT_EQ(read_file(files().at(1)), before);
}

TEST_F(EventFileTest, AFolderThatCannotBeWrittenIsNamedWithTheReason) {
  std::ofstream(folder_ / "file") << "";
  EXPECT_THAT(
      [&] { EventFile(folder_ / "file" / "logs", 1); },
      ThrowsMessage<EnvironmentError>(
          AllOf(HasSubstr((folder_ / "file" / "logs").string()), HasSubstr("Not a directory"))));
}

} // namespace
} // namespace palimpsest
