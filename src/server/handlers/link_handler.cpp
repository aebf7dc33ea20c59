// QUERY kPeer: copies between servers. Note [Direct copies] in wire/peers.h.
#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "server/executor/entry.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/peers.h"

namespace torch_remote::server {
namespace {

// Bytes for a GPU go through a buffer of this size.
constexpr uint64_t kHostBuffer = uint64_t{8} << 20;

// Kept alive until it is sent.
struct SentCopy {
  at::Tensor tensor;
  std::shared_ptr<const void> token;
};

class LinkHandler : public Handler {
 public:
  LinkHandler(SessionState& session, HandlerTable& table);

  void close() override { links_.reset(); }

 private:
  void query_peer(uint64_t request, wire::Reader& reader);
  void apply(uint64_t request, const wire::PeerQuery& query);
  void open(uint64_t request, const wire::PeerQuery& query);
  void send(uint64_t request, const wire::PeerQuery& query);
  void receive(uint64_t request, const wire::PeerQuery& query);
  // Throws ConnectionError if it is closed.
  std::shared_ptr<PeerLink> find_link(uint64_t link);

  SessionState& session_;
  std::unique_ptr<PeerLinks> links_;  // null: the server was started without --peers
};

std::span<std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

wire::TensorSpec spec_of_bytes(uint64_t length) {
  wire::TensorSpec spec;
  spec.dtype = wire::Dtype::kUint8;
  spec.sizes = {static_cast<int64_t>(length)};
  spec.strides = {1};
  return spec;
}

void answer_peer(Replies& replies, uint64_t request, const wire::PeerAnswer& answer,
                 wire::PeerAction action) {
  answer_with(replies, request, [&](wire::Writer& body) { wire::encode(body, answer, action); });
}

// Fills a view of bytes with the next copy of a link.
void receive_into(PeerLink& link, const at::Tensor& view) {
  link.expect(view.nbytes());
  if (view.is_cpu())
    return link.read(bytes_in(view));
  const int64_t most = std::min<int64_t>(view.numel(), kHostBuffer);
  const at::Tensor buffer = at::empty({most}, view.options().device(at::kCPU));
  for (int64_t at = 0; at < view.numel(); at += most) {
    const at::Tensor part = buffer.narrow(0, 0, std::min(most, view.numel() - at));
    link.read(bytes_in(part));
    view.narrow(0, at, part.numel()).copy_(part);
  }
}

LinkHandler::LinkHandler(SessionState& session, HandlerTable& table) : session_(session) {
  if (session.options.peers)
    links_ = std::make_unique<PeerLinks>(*session.options.peers);
  table.add<&LinkHandler::query_peer>(wire::QueryKind::kPeer, *this);
}

// A failure of a link is answered with its reason, and stops nothing: the client copies in another
// way. Everything else fails as a READ does.
void LinkHandler::query_peer(uint64_t request, wire::Reader& reader) {
  const wire::PeerQuery query = wire::decode_peer_query(reader);
  try {
    apply(request, query);
  } catch (const ConnectionError& error) {
    if (links_ != nullptr)
      links_->close(query.link);
    answer_peer(session_.replies, request, {error.what(), {}}, query.action);
  } catch (...) {
    answer_failure(session_.replies, request, std::current_exception(), "copy between servers");
  }
}

void LinkHandler::apply(uint64_t request, const wire::PeerQuery& query) {
  if (links_ == nullptr)
    throw ConnectionError("the server was started without --peers");
  switch (query.action) {
    case wire::PeerAction::kListen:
    case wire::PeerAction::kConnect:
      return open(request, query);
    case wire::PeerAction::kSend:
      return send(request, query);
    case wire::PeerAction::kReceive:
      return receive(request, query);
    case wire::PeerAction::kClose:
      links_->close(query.link);
      return answer_peer(session_.replies, request, {}, query.action);
  }
}

std::shared_ptr<PeerLink> LinkHandler::find_link(uint64_t link) {
  std::shared_ptr<PeerLink> found = links_->find(link);
  if (found == nullptr)
    throw ConnectionError("the link is closed");
  return found;
}

void LinkHandler::open(uint64_t request, const wire::PeerQuery& query) {
  Replies& replies = session_.replies;
  try {
    if (query.action == wire::PeerAction::kListen)
      return answer_peer(replies, request, {"", links_->listen(query.link, query.ticket)},
                         query.action);
    links_->connect(query.link, query.ticket, query.address,
                    [&replies, request, action = query.action](const std::string& reason) {
                      answer_peer(replies, request, {reason, {}}, action);
                    });
  } catch (const std::exception& error) {  // also of an address that cannot be used
    throw ConnectionError(error.what());
  }
}

void LinkHandler::send(uint64_t request, const wire::PeerQuery& query) {
  StorageTable& storages = session_.storages;
  Entry& entry = storages.find(query.storage);
  if (session_.threads.cause() != nullptr)
    return session_.replies.error(request, *session_.threads.cause());
  if (entry.missing != nullptr)
    return session_.replies.error(request, *entry.missing);
  const std::shared_ptr<PeerLink> link = find_link(query.link);
  storages.prepare(entry, false);
  const at::Tensor view =
      storages.resolve(entry, marshal::make_tensor_recipe(query.spec), query.offset);
  const bool is_copied = !view.is_cpu() || !view.is_contiguous() || view.is_conj() ||
                         view.is_neg() || entry.is_pinned();
  const auto token = storages.reply_token(entry, is_copied ? view.nbytes() : 0);
  const at::Tensor plain = for_reply(entry, view).cpu().resolve_conj().resolve_neg().contiguous();
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(plain.const_data_ptr()),
                                         plain.nbytes());
  link->send(bytes, std::make_shared<const SentCopy>(SentCopy{plain, token}));
  answer_peer(session_.replies, request, {}, query.action);
}

// If it fails, the storage may be filled in part.
void LinkHandler::receive(uint64_t request, const wire::PeerQuery& query) {
  StorageTable& storages = session_.storages;
  Entry& entry = storages.find(query.storage);
  if (session_.threads.cause() != nullptr)
    return session_.replies.error(request, *session_.threads.cause());
  if (entry.missing != nullptr && query.length != entry.nbytes)
    return session_.replies.error(request, *entry.missing);
  const std::shared_ptr<PeerLink> link = find_link(query.link);
  session_.executor.drop_storages();
  storages.prepare(entry, true);
  const at::Tensor view = storages.resolve(
      entry, marshal::make_tensor_recipe(spec_of_bytes(query.length)), query.offset);
  receive_into(*link, view);
  storages.missing().clear(entry);
  answer_peer(session_.replies, request, {}, query.action);
}

}  // namespace

std::unique_ptr<Handler> make_link_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<LinkHandler>(session, table);
}

}  // namespace torch_remote::server
