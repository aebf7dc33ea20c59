#include "server/listener/metrics.h"

#include <array>

namespace torch_remote::server {
namespace {

using Figures = SessionPage::Figures;

struct Row {
  const char* name;
  const char* type;
  uint64_t Figures::*figure;
};

constexpr std::array<Row, 7> kRows{{
    {"calls_total", "counter", &Figures::calls},
    {"errors_total", "counter", &Figures::failures},
    {"received_bytes_total", "counter", &Figures::bytes_received},
    {"sent_bytes_total", "counter", &Figures::bytes_sent},
    {"memory_bytes", "gauge", &Figures::memory},
    {"storages", "gauge", &Figures::storages},
    {"queued_bytes", "gauge", &Figures::queued},
}};

std::string type_line(const std::string& name, const char* type) {
  return "# TYPE torch_remote_" + name + " " + type + "\n";
}

std::string line(const std::string& name, const char* type, uint64_t value) {
  return type_line(name, type) + "torch_remote_" + name + " " + std::to_string(value) + "\n";
}

}  // namespace

std::string describe_metrics(const ListenerFigures& listener,
                             const std::vector<std::pair<std::string, Figures>>& sessions) {
  std::string text = line("sessions", "gauge", sessions.size()) +
                     line("sessions_total", "counter", listener.sessions_begun) +
                     line("sessions_killed_total", "counter", listener.sessions_killed) +
                     line("refused_total", "counter", listener.clients_refused);
  for (const Row& row : kRows) {
    text += type_line(row.name, row.type);
    for (const auto& [session, figures] : sessions) {
      text += std::string("torch_remote_") + row.name + "{session=\"" + session + "\"} " +
              std::to_string(figures.*row.figure) + "\n";
    }
  }
  return text;
}

}  // namespace torch_remote::server
