#include "server/groups/groups.h"

#include <algorithm>

#include <arpa/inet.h>

#include "base/error.h"
#include "base/platform.h"
#include "server/executor/failures.h"
#include "server/executor/storage_table.h"
#include "server/groups/engine.h"

namespace torch_remote::server {
namespace {

constexpr const char* kWhat = "process group";

thread_local Groups* current_groups = nullptr;

bool is_any_address(const in6_addr& address) {
  const bool is_four = IN6_IS_ADDR_V4MAPPED(&address);  // ::ffff:0.0.0.0
  return IN6_IS_ADDR_UNSPECIFIED(&address) ||
         (is_four && std::all_of(address.s6_addr + 12, address.s6_addr + 16,
                                 [](uint8_t byte) { return byte == 0; }));
}

// An engine would look a name up, which a session may not do, and would listen at any address.
void check_address(const std::string& address) {
  in6_addr six{};
  in_addr four{};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1 && four.s_addr != INADDR_ANY)
    return;
  if (::inet_pton(AF_INET6, address.c_str(), &six) == 1 && !is_any_address(six))
    return;
  throw Refused("needs an IP address of this server, and the client names \"" + address + "\"");
}

}  // namespace

Group::Group(const Devices& devices, Replies& replies, Sends& sends, const wire::GroupQuery& query,
             uint64_t request)
    : replies_(replies),
      sends_(sends),
      store_(c10::make_intrusive<ExchangeStore>(
          std::chrono::milliseconds(query.timeout),
          [this](const wire::GroupAnswer& told) { answer(told); })),
      request_(request),
      opening_([this, &devices, query] { open(devices, query); }) {}

Group::~Group() {
  store_->abandon();
  opening_.join();
  sends_.finish(this);
}

void Group::open(const Devices& devices, const wire::GroupQuery& query) {
  name_this_thread("tr-group");
  try {
    EngineOptions options{store_,
                          static_cast<int>(query.rank),
                          static_cast<int>(query.size),
                          std::chrono::milliseconds(query.timeout),
                          query.address,
                          devices.device(query.device)};
    auto engine = devices.is_cuda() ? make_nccl(options) : make_gloo(options);
    {
      MutexLock lock(mutex_);
      engine_ = std::move(engine);
    }
    wire::GroupAnswer last;
    last.is_open = true;
    last.entries = store_->finish();
    answer(last);
  } catch (...) {
    fail(describe_any_failure(std::current_exception(), kWhat));
  }
}

void Group::fail(wire::Error failure) {
  store_->abandon();
  {
    MutexLock lock(mutex_);
    failure_ = failure;
  }
  try {
    if (const uint64_t request = take_request(); request != 0)
      replies_.error(request, failure);
  } catch (const std::exception&) {
    // The session has ended: nobody is left to be answered.
  }
}

uint64_t Group::take_request() {
  MutexLock lock(mutex_);
  return std::exchange(request_, 0);
}

void Group::answer(const wire::GroupAnswer& answer) {
  wire::Writer body;
  encode(body, answer);
  replies_.reply(take_request(), body.view());
}

void Group::go_on(std::vector<wire::GroupEntry> entries, uint64_t request) {
  {
    MutexLock lock(mutex_);
    if (request_ != 0)
      throw ProtocolError("a process group is asked to go on before it has answered");
    request_ = request;
  }
  if (store_->bring(std::move(entries)))
    return;
  const uint64_t unanswered = take_request();
  if (unanswered == 0)
    return;  // it has failed meanwhile, and that was the answer
  std::optional<wire::Error> failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
  }
  if (!failure)
    throw ProtocolError("a process group that is open is asked to go on");
  replies_.error(unanswered, *failure);
}

c10d::Backend& Group::engine() {
  MutexLock lock(mutex_);
  if (engine_ == nullptr)
    throw Refused("uses a process group that is not open");
  return *engine_;
}

Groups::Groups(const Devices& devices, Replies& replies, bool may_connect)
    : devices_(devices), replies_(replies), may_connect_(may_connect) {}

void Groups::open(uint64_t request, const wire::GroupQuery& query) {
  if (!may_connect_)
    throw Refused(
        "needs connections between servers: start the server with `torch-remote serve --peers` "
        "(an embedded one has them if init_process_group(\"remote\") is before the first tensor)");
  if (groups_.contains(query.group))
    throw ProtocolError("a process group is opened twice");
  wire::check_limit("process groups of a session", groups_.size() + 1, wire::kMaxGroups);
  devices_.device(query.device);  // refuses one that is not there
  check_address(query.address);
  groups_.emplace(query.group, std::make_unique<Group>(devices_, replies_, sends_, query, request));
}

void Groups::query(uint64_t request, wire::GroupQuery query) {
  const auto found = groups_.find(query.group);
  try {
    if (query.action == wire::GroupAction::kOpen)
      return open(request, query);
    if (found == groups_.end())
      throw Refused("is not open");
    if (query.action == wire::GroupAction::kGoOn)
      return found->second->go_on(std::move(query.entries), request);
    groups_.erase(found);
    replies_.reply(request, {});
  } catch (...) {
    replies_.error(request, describe_failure(std::current_exception(), kWhat));
  }
}

Group& Groups::find(int64_t name) {
  const auto found = groups_.find(static_cast<uint64_t>(name));
  if (found == groups_.end())
    throw Refused("uses a process group that is not open");
  return *found->second;
}

Groups& Groups::current() {
  if (current_groups == nullptr)
    throw Refused("runs in a session only");
  return *current_groups;
}

Groups::Scope::Scope(Groups& groups) : before_(std::exchange(current_groups, &groups)) {}

Groups::Scope::~Scope() {
  current_groups = before_;
}

}  // namespace torch_remote::server
