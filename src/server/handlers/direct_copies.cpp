// What an Interpreter does and answers for copies between servers: Note [Direct copies] in
// wire/peers.h.
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/log.h"
#include "server/executor/errors.h"
#include "server/handlers/interpreter.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Bytes for a GPU go through a buffer of this size.
constexpr uint64_t kHostBuffer = uint64_t{8} << 20;

// Kept alive until it is sent.
struct SentCopy {
  at::Tensor tensor;
  std::shared_ptr<const void> token;
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

void answer(Replies& replies, uint64_t request, const wire::PeerAnswer& answer,
            wire::PeerAction action) {
  wire::Writer body;
  encode(body, answer, action);
  replies.reply(request, body.view());
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

}  // namespace

void Interpreter::allow_peers(PeerOptions options) {
  peers_ = std::make_unique<PeerLinks>(std::move(options));
}

// A failure of a link is answered with its reason, and stops nothing: the client copies in another
// way. Everything else fails as a READ does.
void Interpreter::query_peer(uint64_t request, wire::Reader& reader) {
  const wire::PeerQuery query = wire::decode_peer_query(reader);
  try {
    if (peers_ == nullptr)
      throw ConnectionError("the server was started without --peers");
    switch (query.action) {
      case wire::PeerAction::kListen:
      case wire::PeerAction::kConnect:
        return open_link(request, query);
      case wire::PeerAction::kSend:
        return send_to_peer(request, query);
      case wire::PeerAction::kReceive:
        return receive_from_peer(request, query);
      case wire::PeerAction::kClose:
        peers_->close(query.link);
        return answer(replies_, request, {}, query.action);
    }
  } catch (const ConnectionError& error) {
    if (peers_ != nullptr)
      peers_->close(query.link);
    answer(replies_, request, {error.what(), {}}, query.action);
  } catch (...) {
    answer_failure(request, std::current_exception(), "copy between servers");
  }
}

void Interpreter::open_link(uint64_t request, const wire::PeerQuery& query) {
  try {
    if (query.action == wire::PeerAction::kListen)
      return answer(replies_, request, {"", peers_->listen(query.link, query.ticket)},
                    query.action);
    peers_->connect(query.link, query.ticket, query.place,
                    [this, request, action = query.action](const std::string& reason) {
                      answer(replies_, request, {reason, {}}, action);
                    });
  } catch (const std::exception& error) {  // also of an address that cannot be used
    throw ConnectionError(error.what());
  }
}

void Interpreter::send_to_peer(uint64_t request, const wire::PeerQuery& query) {
  Entry& entry = storages_.find(query.storage);
  if (threads_.cause() != nullptr)
    return replies_.error(request, *threads_.cause());
  if (entry.missing != nullptr)
    return replies_.error(request, *entry.missing);
  const std::shared_ptr<PeerLink> link = peers_->find(query.link);
  if (link == nullptr)
    throw ConnectionError("the link is closed");
  storages_.prepare(entry, false);
  const at::Tensor view =
      storages_.resolve(entry, marshal::make_tensor_recipe(query.spec), query.offset);
  const bool is_copied = !view.is_cpu() || !view.is_contiguous() || view.is_conj() || view.is_neg();
  const auto token = storages_.reply_token(entry, is_copied ? view.nbytes() : 0);
  const at::Tensor plain = view.cpu().resolve_conj().resolve_neg().contiguous();
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(plain.const_data_ptr()),
                                         plain.nbytes());
  link->send(bytes, std::make_shared<const SentCopy>(SentCopy{plain, token}));
  answer(replies_, request, {}, query.action);
}

// If it fails, the storage may be filled in part.
void Interpreter::receive_from_peer(uint64_t request, const wire::PeerQuery& query) {
  Entry& entry = storages_.find(query.storage);
  if (threads_.cause() != nullptr)
    return replies_.error(request, *threads_.cause());
  if (entry.missing != nullptr && query.length != entry.nbytes)
    return replies_.error(request, *entry.missing);
  const std::shared_ptr<PeerLink> link = peers_->find(query.link);
  if (link == nullptr)
    throw ConnectionError("the link is closed");
  executor_.drop_storages();
  storages_.prepare(entry, true);
  const at::Tensor view = storages_.resolve(
      entry, marshal::make_tensor_recipe(spec_of_bytes(query.length)), query.offset);
  receive_into(*link, view);
  storages_.set_missing(entry, nullptr);
  answer(replies_, request, {}, query.action);
}

}  // namespace torch_remote::server
