#pragma once

#include <array>
#include <cstdint>

#include "base/error.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace torch_remote::server {

// Handles a family of messages: it adds its functions to the HandlerTable when it is made. Confined
// to the executor thread.
class Handler {
 public:
  Handler() = default;
  virtual ~Handler() = default;
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

  // The session ends: no thread of the handler is left afterwards.
  virtual void close() {}
};

// One function of a handler. To call it costs one indirect call.
template <typename... Arguments>
struct HandlerFunction {
  void (*function)(void* handler, Arguments... arguments) = nullptr;  // null: there is none
  void* handler = nullptr;

  explicit operator bool() const { return function != nullptr; }

  void operator()(Arguments... arguments) const { function(handler, arguments...); }
};

// Which function handles which message, and which kind of QUERY. Confined to the executor thread.
class HandlerTable {
 public:
  using OnMessage = HandlerFunction<wire::Reader&>;
  using OnQuery = HandlerFunction<uint64_t, wire::Reader&>;  // `request`, the fields of the kind

  // `table.add<&T::function>(tag, handler)`. InternalError if the message has a handler already.
  template <auto kFunction, typename T>
  void add(wire::Tag tag, T& handler) {
    OnMessage& place = messages_[static_cast<uint8_t>(tag)];
    check_internal(!place, "a message has one handler");
    place = {
        [](void* object, wire::Reader& reader) { (static_cast<T*>(object)->*kFunction)(reader); },
        &handler};
  }

  // The same for a kind of QUERY.
  template <auto kFunction, typename T>
  void add(wire::QueryKind kind, T& handler) {
    OnQuery& place = queries_.at(static_cast<uint8_t>(kind));
    check_internal(!place, "a kind of QUERY has one handler");
    place = {[](void* object, uint64_t request, wire::Reader& reader) {
               (static_cast<T*>(object)->*kFunction)(request, reader);
             },
             &handler};
  }

  // InternalError if a kind of QUERY has no handler.
  void check_queries() const {
    for (const OnQuery& query : queries_)
      check_internal(static_cast<bool>(query), "every kind of QUERY has a handler");
  }

  // False as a bool: an unknown tag.
  const OnMessage& find(wire::Tag tag) const { return messages_[static_cast<uint8_t>(tag)]; }

  const OnQuery& find(wire::QueryKind kind) const {
    return queries_.at(static_cast<uint8_t>(kind));
  }

 private:
  std::array<OnMessage, 256> messages_{};  // by tag, a byte
  std::array<OnQuery, static_cast<size_t>(wire::kMaxQueryKind) + 1> queries_{};
};

}  // namespace torch_remote::server
