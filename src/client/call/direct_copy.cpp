#include "client/call/direct_copy.h"

#include "client/call/peer_links.h"
#include "client/call/upload.h"
#include "client/process/lines.h"
#include "client/process/records.h"
#include "client/session/answers.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

constexpr const char* kWhat = "a copy to another server";

class DirectCopy {
 public:
  DirectCopy(const at::Tensor& destination, const at::Tensor& source, uint64_t link)
      : to_record_(*record_of(destination)),
        from_record_(*record_of(source)),
        to_(*session_of(to_record_)),
        from_(*session_of(from_record_)) {
    query_.link = link;
    query_.length = source.nbytes();
    to_offset_ = offset_of(*destination.unsafeGetTensorImpl(), to_record_) * destination.itemsize();
    query_.offset = offset_of(*source.unsafeGetTensorImpl(), from_record_);
    // In the order of its memory.
    query_.spec = marshal::spec_of(source.as_strided({source.numel()}, {1}));
  }

  // Why the link failed; empty: the bytes are there.
  std::string run() {
    from_.begin_call({nullptr, from_record_.name});
    to_.begin_call();
    query_.action = wire::PeerAction::kSend;
    std::string reason = ask(from_, from_record_);
    if (!reason.empty())
      return reason;
    query_.action = wire::PeerAction::kReceive;
    query_.offset = to_offset_;
    return ask(to_, to_record_);
  }

 private:
  std::string ask(Session& session, StorageRecord& record) {
    query_.storage = record.name;
    const RequestPtr request = session.make_request({}, nullptr);
    request->device = record.server_device;
    request->storage = record.name;
    const bool is_announced = record.announced.load(std::memory_order_relaxed);
    const CallSite site{is_announced ? 0 : current_line(), record.server_device};
    {
      Submission at(session);
      at.announce(record, site);
      at.use_current_stream(record.server_device);
      wire::encode_query(at.writer(), {request->id, wire::QueryKind::kPeer},
                         [&] { encode(at.writer(), query_); });
    }
    session.wait(request, kWhat);
    const auto decode = [&](wire::Reader& reader) {
      return wire::decode_peer_answer(reader, query_.action);
    };
    return decode_answer(session, request->body, decode).reason;
  }

  StorageRecord& to_record_;
  StorageRecord& from_record_;
  Session& to_;
  Session& from_;
  uint64_t to_offset_ = 0;  // bytes
  wire::PeerQuery query_;
};

}  // namespace

bool may_copy_directly(const at::Tensor& destination, const at::Tensor& source) {
  return source.nbytes() >= kDirectCopy &&
         PeerLinks::instance().may_connect(*session_of(*record_of(source)),
                                           *session_of(*record_of(destination)));
}

bool copy_directly(const at::Tensor& destination, const at::Tensor& source) {
  if (!may_copy_directly(destination, source))
    return false;
  check_exists(destination);
  Session& from = *session_of(*record_of(source));
  Session& to = *session_of(*record_of(destination));
  auto& links = PeerLinks::instance();
  const auto link = links.take(from, to);
  if (!link)
    return false;
  std::string failure;
  try {
    failure = DirectCopy(destination, source, *link).run();
  } catch (...) {
    links.drop(from, to, *link);  // bytes may still be on their way
    throw;
  }
  if (failure.empty())
    links.give_back(from, to, *link);
  else
    links.drop(from, to, *link, failure);
  return failure.empty();
}

}  // namespace torch_remote::client
