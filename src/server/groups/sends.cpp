#include "server/groups/sends.h"

#include <c10/util/Exception.h>

namespace torch_remote::server {

void Sends::make_room(uint64_t bytes) {
  while (!sending_.empty() && (sending_.size() >= kMost || bytes_ + bytes > kMostBytes)) {
    const Sending oldest = std::move(sending_.front());
    sending_.pop_front();
    bytes_ -= oldest.bytes;
    try {
      oldest.work->wait();
    } catch (const std::exception& error) {
      TORCH_CHECK(false,
                  "the other rank has not taken a tensor that was sent earlier, and a server ",
                  "sends at most ", kMost, " tensors or ", kMostBytes >> 20,
                  " MiB at a time: ", error.what());
    }
  }
}

void Sends::add(const Group* group, c10::intrusive_ptr<c10d::Work> work, uint64_t bytes) {
  sending_.push_back({group, std::move(work), bytes});
  bytes_ += bytes;
}

void Sends::finish(const Group* group) {
  std::deque<Sending> others;
  bool is_gone = false;  // the other rank: it does not take what was sent to it
  for (Sending& sending : sending_) {
    if (sending.group != group) {
      others.push_back(std::move(sending));
      continue;
    }
    bytes_ -= sending.bytes;
    try {
      if (!is_gone)
        sending.work->wait();
    } catch (const std::exception&) {
      is_gone = true;
    }
  }
  sending_ = std::move(others);
}

}  // namespace torch_remote::server
