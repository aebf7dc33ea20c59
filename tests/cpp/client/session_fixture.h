#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "client/process/records.h"
#include "client/session/submission.h"
#include "fake_server.h"
#include "transport/memory_stream.h"

namespace torch_remote::client::testing {

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <typename Use>
std::string error_of(Use use) {
  try {
    use();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : SessionTest(transport::memory_pair()) {}

  using Pair = std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>>;

  explicit SessionTest(
      Pair pair, void (*change)(Endpoint&) = [](Endpoint&) {})
      : server(std::move(pair.second)), session(*new Session([&] {
          Endpoint endpoint = endpoint_of(std::move(pair.first));
          change(endpoint);
          return endpoint;
        }())) {}

  void connect() {
    let_in(server.stream());
    server.start();
    session.welcome();
  }

  // A message that the fake server can tell from others.
  void submit(uint64_t number, uint32_t calls = 1) {
    Submission at(session);
    for (uint32_t i = 0; i < calls; ++i)
      at.number_call({});
    encode(at.writer(), wire::Resize{number, 0, 0});
  }

  std::shared_ptr<Request> ask(std::span<std::byte> destination = {}) {
    const auto request = session.make_request(destination, nullptr);
    Submission at(session);
    wire::encode_query(at.writer(), {request->id, wire::QueryKind::kBarrier}, [] {});
    return request;
  }

  // Runs `use` in another thread, gives this answer to all queries until it is done, and gives the
  // text of its error.
  template <typename Use>
  std::string error_with_answers(const Bytes& body, Use use) {
    auto error = std::async(std::launch::async, [&] { return error_of(use); });
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (error.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      const auto messages = server.wait_for_messages(0);
      for (; answered_ < messages.size(); ++answered_)
        server.reply(messages[answered_].number, body);
      if (std::chrono::steady_clock::now() > end)
        server.die();
    }
    return error.get();
  }

  // The text that ends a session which waits for an answer.
  std::string wait_for_the_end() {
    return error_of([&] { session.wait(ask(), "the end"); });
  }

  StorageRecord* make_storage(bool announced, uint64_t nbytes = 64) {
    StorageRecord* record =
        RecordPool::instance().make(session.order().new_names().storages(), &session, 0, nbytes);
    record->announced.store(announced);
    return record;
  }

  FakeServer server;
  Session& session;  // never destroyed: tensors may outlive everything

 private:
  size_t answered_ = 0;  // messages, by error_with_answers()
};

}  // namespace torch_remote::client::testing
