#pragma once

#include "client/process/current_device.h"
#include "client/process/threads.h"
#include "client/session/session.h"

namespace torch_remote::client {

// What a Submission does for a session that has ended. kWrite is for callers that may not raise and
// have looked themselves: nobody reads what they write if the session ends meanwhile.
enum class IfLost : uint8_t { kRaise, kWrite };

// A thread's place in a session's order of messages: has the submit lock while it lives, and then
// has what was appended sent soon. Nothing need be appended. Call Session::begin_call() first.
// Drop no tensor reference while it lives.
//
// An exception meanwhile takes nothing back. Messages that are complete are sent. One that is cut
// short (only memory that is exhausted does that) is refused by the server, which ends the session.
class SCOPED_CAPABILITY Submission {
 public:
  // Raises SessionLost if the session has ended.
  explicit Submission(Session& session, IfLost if_lost = IfLost::kRaise)
      ACQUIRE(session.order().mutex_)
      : Submission(session.link(), order_of(session, if_lost)) {
    order_.make_room();
    before_ = messages_.encoded();
    if (const uint64_t thread = current_thread(); thread != messages_.thread) [[unlikely]]
      wire::encode_thread(messages_.writer, messages_.thread = thread);
  }

  ~Submission() RELEASE() {
    order_.count(messages_.encoded() - before_, calls_);
    order_.mutex_.unlock();
    link_.flush_soon();
  }

  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
  Submission(Submission&&) = delete;
  Submission& operator=(Submission&&) = delete;

  wire::Writer& writer() { return messages_.writer; }

  // Of the storages that the frame's calls mention.
  wire::NameState& names() { return messages_.names; }

  SignatureTable& signatures() { return messages_.signatures; }

  SentPrograms& programs() { return messages_.programs; }

  Counters& counters() { return order_.counters(); }

  // What follows for the device goes to this thread's current stream.
  void use_current_stream(uint8_t device) {
    if (are_streams_used()) [[unlikely]]
      messages_.use_stream(device, current_stream(order_.index_of(device)));
  }

  // Tells the server what of the context has changed since it was last told.
  void mirror_context() { messages_.context.append_changes(messages_.writer); }

  // Other settings were appended: the server is told all of them again before the next call.
  void forget_context() { messages_.context = {}; }

  // Appends a RESIZE that creates the storage on the server. False: the server knows it already.
  bool announce(StorageRecord& record, CallSite site);

  // Appends the SIGNATURE, which is in the table, with its operator if the server does not know it.
  // `defaults`: defaults_of(), if the server's operator is another.
  void announce(Signature& signature, std::span<const uint32_t> defaults);

  struct Numbered {
    uint64_t call;
    uint64_t thread;
  };

  // Numbers the CALL, QUERY kCall or kCheckedCall, BEGIN or RESIZE that follows.
  Numbered number_message(CallSite site) {
    use_current_stream(site.device);
    return {messages_.number(site), messages_.thread};
  }

  // As number_message(), for a call of an operator, which the statistics count.
  Numbered number_call(CallSite site) {
    ++calls_;
    return number_message(site);
  }

  // The number of the last call, upload or resize of any thread.
  uint64_t last_call() const { return messages_.call_number; }

  // Starts a new frame, because the BEGIN of a bulk upload must be first in its frame.
  void cut_frame() { messages_.cut_frame(); }

  // For many messages of one submission, before each.
  void end_full_frame() {
    if (messages_.writer.size() >= kFrameTarget)
      messages_.cut_frame();
  }

 private:
  // Of its own, so that the destructor runs if the public one throws.
  Submission(Link& link, MessageOrder& order) ACQUIRE(order.mutex_)
      : link_(link), order_(order), messages_(order.messages_) {
    order_.mutex_.lock();
    before_ = messages_.encoded();
  }

  static MessageOrder& order_of(Session& session, IfLost if_lost) {
    if (if_lost == IfLost::kRaise)
      session.check_not_lost();
    return session.order();
  }

  Link& link_;
  MessageOrder& order_;
  MessageBuffer& messages_;  // of the order
  uint64_t before_ = 0;      // bytes that were encoded
  uint32_t calls_ = 0;
};

}  // namespace torch_remote::client
