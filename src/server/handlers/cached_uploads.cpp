// What an Interpreter answers about the cache of uploads: Note [Uploads from the cache] in
// wire/upload_cache.h.
#include "server/handlers/interpreter.h"
#include "wire/upload_cache.h"

namespace torch_remote::server {

void Interpreter::query_cached_uploads(uint64_t request) {
  wire::Writer body;
  encode(body, uploads_.cached());
  replies_.reply(request, body.view());
}

void Interpreter::query_cached_upload(uint64_t request, wire::Reader& reader) {
  const wire::CachedUpload upload = wire::decode_cached_upload(reader);
  std::shared_ptr<Staging> staging = uploads_.load(upload.digest, upload.length);
  wire::Writer body;
  wire::encode_filled(body, staging != nullptr);
  if (staging != nullptr)
    put_in(upload.storage, std::move(staging));
  else
    executor_.skip_number();
  replies_.reply(request, body.view());
}

// As BEGIN does.
void Interpreter::put_in(uint64_t storage, std::shared_ptr<Staging> staging) {
  executor_.drop_storages();
  executor_.upload(storage, staging->length(),
                   [&](Entry& entry) { storages_.expect_upload(entry, 0, std::move(staging)); });
  storages_.write_arrived();  // it is all there
}

}  // namespace torch_remote::server
