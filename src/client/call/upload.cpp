#include "client/call/upload.h"

#include <vector>

#include "client/memory/downloads.h"
#include "client/memory/pinned.h"
#include "client/process/lines.h"
#include "client/process/recording.h"
#include "client/process/records.h"
#include "client/session/pending.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "wire/limits.h"
#include "wire/upload_cache.h"

namespace torch_remote::client {
namespace {

// Uploads from pageable memory return at once up to this size, after a copy. Larger ones wait.
constexpr uint64_t kCopiedUpload = 1 << 20;
static_assert(kCopiedUpload >= wire::kMinCachedUpload);  // or some were hashed but never kept

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<size_t>(tensor.nbytes())};
}

std::vector<wire::CachedEntry> fetch_known(Session& session) {
  const auto body = session.query(wire::QueryKind::kCachedUploads, "uploads of earlier sessions");
  return decode_answer(session, body, wire::decode_cached_entries);
}

bool has_cache(Session& session) {
  return (session.welcome().capabilities & wire::kUploadCacheCapability) != 0;
}

class Upload {
 public:
  // From byte `begin` of a dense tensor on.
  Upload(const at::Tensor& destination, uint64_t begin)
      : record_(*record_of(destination)), session_(*session_of(record_)) {
    begin_.storage = record_.name;
    begin_.offset =
        offset_of(*destination.unsafeGetTensorImpl(), record_) * destination.itemsize() + begin;
  }

  void send_inline(std::span<const std::byte> bytes) {
    begin_.length = bytes.size();
    begin_.is_inline = true;
    begin_.bytes = bytes;
    Submission at(session_);
    at.announce(record_, site_);
    at.number_message(site_);
    encode(at.writer(), begin_);
  }

  // The server has the bytes from an earlier session, and fills the whole storage with them. False:
  // they must be sent. Waits, where it asks.
  bool fill_from_cache(std::span<const std::byte> bytes) {
    KnownUploads& known = known_uploads(session_);
    if (!known.are_set())
      known.set(fetch_known(session_));
    if (!known.may_have(bytes.size()))
      return false;
    const wire::CachedUpload cached{record_.name, bytes.size(), wire::sha256(bytes)};
    if (!known.has(cached.digest, cached.length))
      return false;
    const RequestPtr request = session_.make_request({}, nullptr);
    {
      Submission at(session_);
      at.announce(record_, site_);
      at.number_message(site_);
      wire::encode_query(at.writer(), {request->id, wire::QueryKind::kCachedUpload},
                         [&] { encode(at.writer(), cached); });
    }
    session_.wait(request, "an upload");
    return decode_answer(session_, request->body, wire::decode_filled);
  }

  // The server keeps the bytes for later sessions, if it can.
  void keep() { begin_.is_kept = true; }

  // The request is done when the server has received the bytes.
  RequestPtr send_bulk(UploadSource source) {
    // The server must know the storage before its bytes arrive.
    Submission(session_).announce(record_, site_);
    begin_.length = source.bytes.size();
    const auto request =
        session_.requests().make_upload(begin_.length, session_.order().submitted());
    begin_.upload = request->id;
    Session& session = session_;
    try {
      session_.upload(begin_, site_, std::move(source), [&session, id = request->id](bool) {
        session.requests().complete_upload(id);
      });
    } catch (...) {  // or synchronize() would wait for it
      session_.requests().forget(*request);
      throw;
    }
    return request;
  }

 private:
  StorageRecord& record_;
  Session& session_;
  const CallSite site_{current_line(), record_.server_device};
  wire::Begin begin_;
};

}  // namespace

void check_exists(const at::Tensor& tensor) {
  StorageRecord& record = *record_of(tensor);
  Session& session = *session_of(record);
  if (!session.faults().may_be_discarded(record.made_by))
    return;
  session.raise_own_failure({nullptr, record.name});
  const at::Tensor element = tensor.as_strided({1}, {1});
  const at::Tensor value = empty_for(element);
  const Download download =
      start_download(element, memory_of(value), std::make_shared<at::Tensor>(value));
  session.wait(download.request, "a value");
  record.made_by = 0;
}

void upload(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const auto bytes = bytes_of(source);
  if (bytes.empty())
    return;
  if (current_recording() != nullptr && source.numel() == 1) [[unlikely]] {
    destination.fill_(source.item());  // a constant of the program
    return;
  }
  check_not_recording("a copy from the memory of this process");
  StorageRecord& record = *record_of(destination);
  if (bytes.size() != record.nbytes)
    check_exists(destination);
  Session& session = *session_of(record);
  session.begin_call();
  Upload upload(destination, 0);
  if (bytes.size() <= wire::kMaxInlineBytes / 4)
    return upload.send_inline(bytes);
  const bool pinned = non_blocking && is_pinned(source.const_data_ptr());
  if (pinned) {
    upload.send_bulk({bytes, SentSources::instance().keep(source.storage())});
    return;
  }
  if (bytes.size() <= kCopiedUpload) {
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    upload.send_bulk({*copy, copy, true});
    return;
  }
  if (bytes.size() == record.nbytes && has_cache(session)) {
    if (upload.fill_from_cache(bytes))
      return;
    upload.keep();
  }
  session.wait(upload.send_bulk({bytes, SentSources::instance().keep(source.storage())}),
               "an upload");
  SentSources::instance().free_done();
}

RequestPtr upload_part(const at::Tensor& destination, uint64_t begin,
                       std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  check_not_recording("a copy from another machine");
  return Upload(destination, begin).send_bulk({bytes, std::move(owner), true});
}

}  // namespace torch_remote::client
