#include "base/networks.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace torch_remote {
namespace {

// Promise 14b.
TEST(Networks, ContainTheAddressesOfTheirPrefixes) {
  const Networks networks = Networks::parse("--peers", "10.1.128.0/17,192.0.2.7,2001:db8::/33");
  for (const char* const inside :
       {"10.1.128.0", "10.1.255.255", "192.0.2.7", "2001:db8:7fff::1", "::ffff:10.1.200.1"})
    EXPECT_TRUE(networks.contain(inside)) << inside;
  for (const char* const outside : {"10.1.127.255", "10.2.0.0", "192.0.2.6", "2001:db8:8000::",
                                    "127.0.0.1", "0.0.0.0", "::", "localhost", ""})
    EXPECT_FALSE(networks.contain(outside)) << outside;
  EXPECT_TRUE(Networks::parse("--peers", "0.0.0.0/0").contain("203.0.113.9"));
  EXPECT_FALSE(Networks::parse("--peers", "0.0.0.0/0").contain("2001:db8::1"));
}

TEST(Networks, WhatIsNoNetworkIsNamed) {
  for (const char* const text : {"", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/8,",
                                 "::/129", "10.0.0.0/8 ", "10.0.0.0/-1", "example.com"}) {
    try {
      Networks::parse("--peers", text);
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("--peers: ")) << error.what();
    }
  }
}

TEST(Networks, ThoseOfThisMachineHaveLoopbackAndNotEverything) {
  const Networks own = Networks::of_this_machine();
  EXPECT_TRUE(own.contain("127.0.0.1"));
  EXPECT_TRUE(own.contain("::1"));
  // No machine is in all of the networks that are for documents.
  EXPECT_FALSE(own.contain("192.0.2.1") && own.contain("198.51.100.1") &&
               own.contain("203.0.113.1"));
  EXPECT_FALSE(own.contain("0.0.0.0"));
}

}  // namespace
}  // namespace torch_remote
