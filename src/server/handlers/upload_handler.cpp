// BEGIN, and uploads that the server has from an earlier session: Note [Uploads from the cache] in
// wire/upload_cache.h.
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/upload_cache.h"

namespace torch_remote::server {
namespace {

class UploadHandler : public Handler {
 public:
  UploadHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&UploadHandler::on_begin>(wire::Tag::kBegin, *this);
    table.add<&UploadHandler::query_cached_uploads>(wire::QueryKind::kCachedUploads, *this);
    table.add<&UploadHandler::query_cached_upload>(wire::QueryKind::kCachedUpload, *this);
  }

 private:
  void on_begin(wire::Reader& reader);
  void query_cached_uploads(uint64_t request, wire::Reader& reader);
  void query_cached_upload(uint64_t request, wire::Reader& reader);
  // As a BEGIN of the whole storage does.
  void put_in(uint64_t storage, std::shared_ptr<Staging> staging);

  SessionState& session_;
};

void UploadHandler::on_begin(wire::Reader& reader) {
  const wire::Begin begin = wire::decode_begin(reader);
  StorageTable& storages = session_.storages;
  std::shared_ptr<Staging> staging;
  std::exception_ptr no_memory;
  if (!begin.is_inline) {
    try {
      staging = session_.uploads.take(begin.upload, begin.length);
    } catch (const c10::OutOfMemoryError&) {
      no_memory = std::current_exception();
    }
  }
  session_.executor.drop_storages();  // so that a storage whose memory is replaced is its only user
  // If the upload is discarded, its memory is freed when all bytes have arrived.
  session_.executor.upload(begin.storage, begin.length, [&](Entry& entry) {
    if (no_memory != nullptr)
      std::rethrow_exception(no_memory);
    if (begin.is_inline)
      storages.write(entry, begin.offset, begin.bytes);
    else
      storages.expect_upload(entry, begin.offset, std::move(staging));
  });
}

void UploadHandler::query_cached_uploads(uint64_t request, wire::Reader& /*reader*/) {
  answer_with(session_.replies, request,
              [&](wire::Writer& body) { wire::encode(body, session_.uploads.cached()); });
}

void UploadHandler::query_cached_upload(uint64_t request, wire::Reader& reader) {
  const wire::CachedUpload upload = wire::decode_cached_upload(reader);
  std::shared_ptr<Staging> staging = session_.uploads.load(upload.digest, upload.length);
  const bool is_filled = staging != nullptr;
  if (is_filled)
    put_in(upload.storage, std::move(staging));
  else
    session_.executor.skip_number();
  answer_with(session_.replies, request,
              [&](wire::Writer& body) { wire::encode_filled(body, is_filled); });
}

void UploadHandler::put_in(uint64_t storage, std::shared_ptr<Staging> staging) {
  session_.executor.drop_storages();
  session_.executor.upload(storage, staging->length(), [&](Entry& entry) {
    session_.storages.expect_upload(entry, 0, std::move(staging));
  });
  session_.storages.write_arrived();  // it is all there
}

}  // namespace

std::unique_ptr<Handler> make_upload_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<UploadHandler>(session, table);
}

}  // namespace torch_remote::server
