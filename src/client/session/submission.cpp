#include "client/session/submission.h"

namespace torch_remote::client {

bool Submission::announce(StorageRecord& record, CallSite site) {
  if (record.announced.exchange(true, std::memory_order_relaxed))
    return false;
  site.operation = kResizeSite;
  if (are_streams_used())
    messages_.use_stream(record.server_device, record.stream);  // it gets its memory on this stream
  messages_.number(site);
  encode(messages_.writer, wire::Resize{record.name, record.server_device,
                                        record.nbytes.load(std::memory_order_relaxed)});
  return true;
}

}  // namespace torch_remote::client
