#include <palimpsest/core/data/records/places.h>

#include <palimpsest/core/base/error.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Places, NumberTheItemsOfAllSourcesThrough) {
  Places places;
  EXPECT_EQ(places.size(), 0);
  EXPECT_THROW(places[0], InternalError);
  for (const int64_t items : {3, 0, 2, 0}) {
    places.add(items);
  }
  ASSERT_EQ(places.size(), 5);
  const Places::Place expected[] = {{0, 0}, {0, 1}, {0, 2}, {2, 0}, {2, 1}};
  for (int64_t item = 0; item < 5; ++item) {
    EXPECT_EQ(places[item], expected[item]) << item;
  }
  EXPECT_THROW(places[5], InternalError);
  EXPECT_THROW(places[-1], InternalError);
}

} // namespace
} // namespace palimpsest
