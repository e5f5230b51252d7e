#include <palimpsest/core/data/joined_source.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_source.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(JoinedSource, FindsEachSample) {
  std::vector<std::unique_ptr<SampleSource>> parts;
  parts.push_back(std::make_unique<FakeSource>(std::vector<TokenSample>{{{1, 2}, {2, -100}}}));
  parts.push_back(std::make_unique<FakeSource>(
      std::vector<TokenSample>{{{3, 4}, {4, -100}}, {{5, 6}, {6, -100}}}));
  const JoinedSource joined(std::move(parts));
  ASSERT_EQ(joined.size(), 3);
  EXPECT_EQ(read_sample(joined, 0).inputs, (Ids{1, 2}));
  EXPECT_EQ(read_sample(joined, 1).inputs, (Ids{3, 4}));
  EXPECT_EQ(read_sample(joined, 2).labels, (Ids{6, -100}));
  EXPECT_THROW(read_sample(joined, 3), InternalError);
}

TEST(JoinedSource, IsPackedWhereOneOfThemIs) {
  std::vector<std::unique_ptr<SampleSource>> parts;
  const std::vector<TokenSample> one = {{{1, 2}, {2, -100}}};
  parts.push_back(std::make_unique<FakeSource>(one));
  EXPECT_FALSE(JoinedSource(std::move(parts)).packed());
  parts.clear();
  parts.push_back(std::make_unique<FakeSource>(one));
  parts.push_back(std::make_unique<FakeSource>(one, std::vector<std::vector<int64_t>>{{1, 1}}));
  const JoinedSource joined(std::move(parts));
  EXPECT_TRUE(joined.packed());
  EXPECT_EQ(joined.documents(0), (Ids{2}));
  EXPECT_EQ(joined.documents(1), (Ids{1, 1}));
}

TEST(JoinedSource, RefusesSamplesOfTwoSizes) {
  std::vector<std::unique_ptr<SampleSource>> parts;
  parts.push_back(std::make_unique<FakeSource>(std::vector<TokenSample>{{{1, 2}, {2, -100}}}));
  parts.push_back(std::make_unique<FakeSource>(std::vector<TokenSample>{{{3}, {-100}}}));
  EXPECT_THROW(JoinedSource{std::move(parts)}, UserError);
}

} // namespace
} // namespace palimpsest
