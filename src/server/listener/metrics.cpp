#include "server/listener/metrics.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include <unistd.h>

#include <torch/version.h>

#include "base/platform.h"
#include "wire/version.h"

namespace torch_remote::server {
namespace {

using Figures = SessionPage::Figures;
using OperatorTime = SessionPage::OperatorTime;
using Labels = std::vector<std::pair<const char*, std::string>>;

// The text must fit into a socket's buffer, because the listener sends it without waiting.
constexpr size_t kShownOperators = 40;

// The operators beyond OperatorTimes::kMaxNames.
const std::string kOtherNames = "others";

struct Row {
  const char* name;
  const char* type;
  uint64_t Figures::*figure;
};

constexpr std::array<Row, 8> kRows{{
    {"calls_total", "counter", &Figures::calls},
    {"errors_total", "counter", &Figures::failures},
    {"answers_total", "counter", &Figures::answers},
    {"received_bytes_total", "counter", &Figures::bytes_received},
    {"sent_bytes_total", "counter", &Figures::bytes_sent},
    {"memory_bytes", "gauge", &Figures::memory},
    {"storages", "gauge", &Figures::storages},
    {"queued_bytes", "gauge", &Figures::queued},
}};

std::string quoted(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\')
      result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string type_line(const std::string& name, const char* type) {
  return "# TYPE torch_remote_" + name + " " + type + "\n";
}

std::string value_line(const std::string& name, const Labels& labels, const std::string& value) {
  std::string text;
  for (const auto& [label, content] : labels)
    text += (text.empty() ? "" : ",") + std::string(label) + "=\"" + quoted(content) + "\"";
  return "torch_remote_" + name + (text.empty() ? "" : "{" + text + "}") + " " + value + "\n";
}

std::string line(const std::string& name, const char* type, uint64_t value) {
  return type_line(name, type) + value_line(name, {}, std::to_string(value));
}

std::string seconds(uint64_t nanoseconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9f", static_cast<double>(nanoseconds) / 1e9);
  return text.data();
}

std::string describe_listener(const ListenerFigures& listener, size_t sessions) {
  const Labels info{{"host", hostname()},
                    {"pid", std::to_string(::getpid())},
                    {"torch", TORCH_VERSION},
                    {"protocol", std::to_string(static_cast<int>(wire::kMaxVersion))},
                    {"sandbox", listener.sandbox}};
  return type_line("info", "gauge") + value_line("info", info, "1") +
         line("start_time_seconds", "gauge", static_cast<uint64_t>(listener.started)) +
         line("time_seconds", "gauge", static_cast<uint64_t>(std::time(nullptr))) +
         line("sessions", "gauge", sessions) +
         line("sessions_total", "counter", listener.sessions_begun) +
         line("sessions_killed_total", "counter", listener.sessions_killed) +
         line("refused_total", "counter", listener.clients_refused);
}

// A session whose client has not proven itself has no facts, and is left out.
std::string describe_facts(const std::vector<SessionRow>& sessions) {
  std::string info = type_line("session_info", "gauge");
  std::string started = type_line("session_start_time_seconds", "gauge");
  std::string memory = type_line("device_memory_bytes", "gauge");
  for (const SessionRow& session : sessions) {
    const SessionPage::Facts facts = session.page->facts();
    if (facts.started == 0)
      continue;
    const Labels label{{"session", session.id}};
    info += value_line("session_info",
                       {{"session", session.id},
                        {"pid", std::to_string(session.pid)},
                        {"peer", facts.peer},
                        {"device", facts.device},
                        {"devices", std::to_string(facts.devices)},
                        {"sandbox", facts.sandbox}},
                       "1");
    started += value_line("session_start_time_seconds", label, std::to_string(facts.started));
    memory += value_line("device_memory_bytes", label, std::to_string(facts.device_memory));
  }
  return info + started + memory;
}

std::string describe_operators(const std::vector<OperatorTime>& longest) {
  std::string calls = type_line("operator_calls_total", "counter");
  std::string time = type_line("operator_seconds_total", "counter");
  for (const OperatorTime& one : longest) {
    const Labels label{{"operator", one.name}};
    calls += value_line("operator_calls_total", label, std::to_string(one.calls));
    time += value_line("operator_seconds_total", label, seconds(one.nanoseconds));
  }
  return calls + time;
}

}  // namespace

void OperatorTimes::add(const std::vector<OperatorTime>& times) {
  for (const OperatorTime& one : times) {
    const bool has_place = by_name_.size() < kMaxNames || by_name_.contains(one.name);
    const std::string& name = has_place ? one.name : kOtherNames;
    OperatorTime& sum = by_name_[name];
    sum.name = name;
    sum.calls += one.calls;
    sum.nanoseconds += one.nanoseconds;
  }
}

std::vector<OperatorTime> OperatorTimes::longest(size_t count) const {
  std::vector<OperatorTime> all;
  for (const auto& [name, one] : by_name_)
    all.push_back(one);
  std::ranges::sort(all, std::greater(), &OperatorTime::nanoseconds);
  all.resize(std::min(all.size(), count));
  return all;
}

std::string describe_metrics(const ListenerFigures& listener,
                             const std::vector<SessionRow>& sessions) {
  std::string text = describe_listener(listener, sessions.size()) + describe_facts(sessions);
  for (const Row& row : kRows) {
    text += type_line(row.name, row.type);
    for (const SessionRow& session : sessions)
      text += value_line(row.name, {{"session", session.id}},
                         std::to_string(session.page->figures().*row.figure));
  }
  OperatorTimes operators = listener.operators_of_ended_sessions;
  for (const SessionRow& session : sessions)
    operators.add(session.page->operator_times());
  return text + describe_operators(operators.longest(kShownOperators));
}

}  // namespace torch_remote::server
