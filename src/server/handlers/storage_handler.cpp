// RESIZE, which makes storages too, and FREE.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class StorageHandler : public Handler {
 public:
  StorageHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&StorageHandler::on_resize>(wire::Tag::kResize, *this);
    table.add<&StorageHandler::on_free>(wire::Tag::kFree, *this);
  }

 private:
  void on_resize(wire::Reader& reader) { session_.executor.resize(wire::decode_resize(reader)); }

  void on_free(wire::Reader& reader) {
    session_.executor.drop_storages();
    wire::decode_free(reader, [this](uint64_t name) { session_.storages.free(name); });
  }

  SessionState& session_;
};

}  // namespace

std::unique_ptr<Handler> make_storage_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<StorageHandler>(session, table);
}

}  // namespace torch_remote::server
