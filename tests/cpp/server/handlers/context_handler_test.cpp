#include <gtest/gtest.h>

#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

TEST(ContextHandler, TheContextCanBeAskedFor) {
  Server server;
  FrameText frame;
  encode(frame.writer, wire::Context{{{wire::Setting::kSdpOrder, 043210}}});
  frame.query(7, wire::QueryKind::kContext);

  const auto answers = server.apply(frame);

  wire::Reader reader(answers.at(0).body);
  const wire::Context context = wire::decode_context(reader);
  ASSERT_EQ(context.settings.size(), wire::kMaxSetting);
  const size_t order = static_cast<size_t>(wire::Setting::kSdpOrder) - 1;
  EXPECT_EQ(context.settings[order], (wire::SettingValue{wire::Setting::kSdpOrder, 043210}));
}

}  // namespace
}  // namespace torch_remote::server::testing
