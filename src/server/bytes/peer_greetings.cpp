#include "server/bytes/peer_greetings.h"

#include <iterator>
#include <utility>
#include <vector>

#include "base/peer_limits.h"
#include "base/platform.h"

namespace torch_remote::server {

PeerGreetings::~PeerGreetings() {
  while (!greetings_.empty())
    end(greetings_.begin());
}

void PeerGreetings::begin(std::shared_ptr<transport::Stream> stream, std::string peer) {
  make_room();
  Greeting& made = greetings_.emplace_back();
  made.stream = std::move(stream);
  made.peer = std::move(peer);
  try {
    made.thread = std::thread([this, &made] {
      name_this_thread("tr-peer-greet");
      greet_(made.stream, made.is_link);
      if (made.is_link)
        has_link_ = true;
      made.is_done = true;
    });
  } catch (...) {
    greetings_.pop_back();
    throw;
  }
}

void PeerGreetings::end(std::list<Greeting>::iterator greeting) {
  if (!greeting->is_link)
    greeting->stream->shutdown();
  greeting->thread.join();
  greetings_.erase(greeting);
}

void PeerGreetings::make_room() {
  for (auto greeting = greetings_.begin(); greeting != greetings_.end();) {
    const auto current = greeting++;
    if (current->is_done)
      end(current);
  }
  if (greetings_.size() < kMost)
    return;
  std::vector<std::string> peers;
  for (const Greeting& greeting : greetings_)
    peers.push_back(greeting.peer);
  end(std::next(greetings_.begin(), static_cast<ptrdiff_t>(oldest_of_busiest(peers))));
}

}  // namespace torch_remote::server
