// torch_remote._C, but for the parts that have files of their own (bindings/parts.h).
#include <chrono>
#include <tuple>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/version.h>

#include "base/platform.h"
#include "bindings/frames.h"
#include "bindings/parts.h"
#include "client/backend/device_profile.h"
#include "client/backend/generator.h"
#include "client/backend/profiler.h"
#include "client/call/prefetch.h"
#include "client/capture/advice.h"
#include "client/link/open.h"
#include "client/machines/machines.h"
#include "client/memory/downloads.h"
#include "client/memory/storage.h"
#include "client/operators/coverage.h"
#include "client/process/context.h"
#include "client/process/current_device.h"
#include "client/process/errors.h"
#include "client/process/memory_history.h"
#include "client/process/process.h"
#include "client/process/waits_by_line.h"
#include "client/register.h"
#include "client/session/pending.h"
#include "client/session/progress.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using client::Machines;
using client::Session;

py::dict to_dict(const wire::DeviceProperties& device, const std::string& host) {
  py::dict properties;
  properties["name"] = device.name;
  properties["total_memory"] = device.total_memory;
  properties["major"] = device.major;
  properties["minor"] = device.minor;
  properties["multi_processor_count"] = device.multi_processors;
  properties["kind"] = device.kind == wire::DeviceKind::kCuda ? "cuda" : "cpu";
  properties["host"] = host;
  return properties;
}

std::optional<c10::DeviceIndex> to_index(std::optional<int> index) {
  return index ? std::optional(static_cast<c10::DeviceIndex>(*index)) : std::nullopt;
}

int connect(const std::string& url, const std::optional<std::string>& token,
            std::optional<int> index) {
  return Machines::instance().connect(url, token, to_index(index));
}

int connect_through(const std::string& url, const std::vector<std::string>& command,
                    std::optional<int> index) {
  return Machines::instance().connect_through(url, command, to_index(index));
}

py::dict properties_of(int index) {
  const auto place = Machines::instance().place(static_cast<c10::DeviceIndex>(index));
  const wire::Welcome& welcome = place.session->welcome();
  return to_dict(welcome.devices.at(place.device), welcome.host);
}

Session* machine_session(int id) {
  return Machines::instance().sessions().at(static_cast<size_t>(id));
}

py::dict machine_info(int id) {
  Session* session = machine_session(id);
  const bool was_stopped = session->link().state() == "stopped";
  const wire::Welcome& welcome = was_stopped ? session->link().welcome() : session->welcome();
  py::dict info;
  info["url"] = session->link().endpoint().url;
  info["host"] = welcome.host;
  info["pid"] = welcome.pid;
  info["session"] = welcome.session;
  info["torch_version"] = welcome.torch_version;
  info["state"] = session->link().state();
  return info;
}

// Of its devices, without waiting: none before the handshake.
std::vector<py::dict> machine_properties(int id) {
  std::vector<py::dict> all;
  const client::Link& link = machine_session(id)->link();
  if (!link.is_open())
    return all;
  for (const wire::DeviceProperties& device : link.welcome().devices)
    all.push_back(to_dict(device, link.welcome().host));
  return all;
}

// Needs no handshake.
py::tuple machine_summary(int id) {
  Session* session = machine_session(id);
  std::vector<int> devices;
  for (const auto index : Machines::instance().devices_of(id, false))
    devices.push_back(index);
  return py::make_tuple(session->link().endpoint().url, devices, session->link().state());
}

transport::Connection::Totals totals_of(Session& session) {
  const transport::Connection* const connection = session.link().connection();
  return connection == nullptr ? transport::Connection::Totals{} : connection->totals();
}

py::dict counters() {
  uint64_t calls = 0, syncs = 0, frames = 0, sent = 0, received = 0, signatures = 0, meta = 0,
           server = 0;
  for (Session* session : Machines::instance().sessions()) {
    client::Counters& one = session->order().counters();
    calls += one.calls;
    syncs += one.syncs;
    const auto totals = totals_of(*session);
    frames += totals.frames_sent;
    sent += one.bytes_sent;
    received += totals.bytes_received;
    signatures += one.signatures_sent;
    meta += one.inferred_by_meta;
    server += one.inferred_by_server;
  }
  py::dict all;
  all["calls"] = calls;
  all["syncs"] = syncs;
  all["frames"] = frames;
  all["bytes_sent"] = sent;
  all["bytes_received"] = received;
  all["signatures_sent"] = signatures;
  all["inferred_by_meta"] = meta;
  all["inferred_by_server"] = server;
  all["storages_live"] = client::RecordPool::instance().live();
  return all;
}

// A tuple (line, count, seconds) for each line that waited.
std::vector<std::tuple<std::string, uint64_t, double>> waits_by_line() {
  std::vector<std::tuple<std::string, uint64_t, double>> all;
  for (const client::WaitsOfLine& waits : client::waits_by_line())
    all.emplace_back(waits.line, waits.count, std::chrono::duration<double>(waits.time).count());
  return all;
}

// Bytes that all connections have written and read.
std::pair<uint64_t, uint64_t> bytes_moved() {
  std::pair<uint64_t, uint64_t> moved{0, 0};
  for (Session* session : Machines::instance().sessions()) {
    const auto totals = totals_of(*session);
    moved.first += totals.bytes_sent;
    moved.second += totals.bytes_received;
  }
  return moved;
}

uint64_t server_mispredicted() {
  uint64_t count = 0;
  for (const int id : Machines::instance().ids())
    count += client::server_counters(*machine_session(id)).mispredicted;
  return count;
}

client::NamedSettings server_context(int index) {
  const auto place = Machines::instance().place(static_cast<c10::DeviceIndex>(index));
  return client::named_settings(client::server_context(*place.session));
}

void synchronize(int index) {
  if (!Machines::instance().is_initialized())
    return;  // nothing was sent
  const auto place = Machines::instance().place(static_cast<c10::DeviceIndex>(index));
  place.session->synchronize();
}

void cancel(int machine) {
  const auto session = machine_session(machine);
  if (session->order().submitted() != 0)
    session->cancel();
}

py::object default_generator(int index) {
  return py::reinterpret_steal<py::object>(
      THPGenerator_Wrap(client::default_generator(static_cast<c10::DeviceIndex>(index))));
}

py::list announced_generators() {
  py::list found;
  for (const at::Generator& each : client::announced_generators())
    found.append(py::reinterpret_steal<py::object>(THPGenerator_Wrap(each)));
  return found;
}

// Not at::Generator::get_state(), which fetches the bytes.
py::object take_rng_state(int index) {
  return py::reinterpret_steal<py::object>(
      THPVariable_Wrap(client::take_state(static_cast<c10::DeviceIndex>(index))));
}

py::list operator_facts() {
  py::list all;
  for (const client::OperatorFacts& facts : client::operator_facts())
    all.append(py::make_tuple(facts.name, facts.route, facts.inference, facts.waits, facts.reason));
  return all;
}

// The session of this device and its last call.
std::pair<uintptr_t, uint64_t> call_number(int device) {
  client::Session* const session =
      Machines::instance().place(static_cast<c10::DeviceIndex>(device)).session;
  return {reinterpret_cast<uintptr_t>(session), session->order().submitted()};
}

// Raises the failure that has stopped this thread, on any machine.
void raise_own_failure() {
  for (client::Session* session : Machines::instance().sessions())
    session->raise_own_failure();
}

// Whether a failure of this thread, 0 for any, is known and was not raised yet.
bool has_failure(uint64_t thread) {
  const auto sessions = Machines::instance().sessions();
  return std::ranges::any_of(sessions, [thread](client::Session* session) {
    return thread == 0 ? session->faults().has_any() : session->faults().has(thread);
  });
}

// Plans the download of a tensor or storage: Note [Downloads that go together].
void plan_download(const py::object& what) {
  client::Prefetch* const plan = client::Prefetch::active();
  if (plan == nullptr)
    return;
  if (THPVariable_Check(what.ptr()))
    return plan->plan(THPVariable_Unpack(what.ptr()));
  plan->plan(torch::createStorage(what.ptr()));
}

void initialise() {
  client::register_backend();
  install_python_hooks();
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.attr("BUILT_FOR_TORCH") = TORCH_VERSION;
  module.def("init", torch::wrap_pybind_function(initialise));
  module.def("set_exception_types", torch::wrap_pybind_function(set_exception_types));
  module.def("set_library_folders", set_library_folders);
  module.def("note_cell", note_cell);
  module.def("set_server_path",
             [](std::string path) { Machines::instance().set_embedded_server(std::move(path)); });
  module.def("set_embedded_options", [](std::vector<std::string> options) {
    Machines::instance().set_embedded_server(std::nullopt, std::move(options));
  });
  module.def("set_start", set_start);
  module.def("let_start_choose", [] { Machines::instance().hooks().start_chooses = true; });
  module.def("connect", torch::wrap_pybind_function(connect), py::arg("url"), py::arg("token"),
             py::arg("index") = py::none());
  module.def("connect_through", torch::wrap_pybind_function(connect_through), py::arg("url"),
             py::arg("command"), py::arg("index") = py::none());
  module.def("is_beyond_loopback", client::is_beyond_loopback);
  module.def("reserve", torch::wrap_pybind_function([](int begin) -> int {
               return Machines::instance().reserve(static_cast<c10::DeviceIndex>(begin));
             }));
  module.def("unreserve", torch::wrap_pybind_function([](int index) {
               Machines::instance().unreserve(static_cast<c10::DeviceIndex>(index));
             }));
  module.def("has_device", [](int index) {
    return Machines::instance().has_device(static_cast<c10::DeviceIndex>(index));
  });
  module.def("start_default",
             torch::wrap_pybind_function([] { Machines::instance().start_default(); }));
  module.def("machine_devices", torch::wrap_pybind_function([](int id) {
               std::vector<int> devices;
               for (const auto index : Machines::instance().devices_of(id))
                 devices.push_back(index);
               return devices;
             }));
  module.def("machine_stop", torch::wrap_pybind_function(
                                 [](int id, bool wait) { Machines::instance().stop(id, wait); }));
  module.def("machine_ids", [] { return Machines::instance().ids(); });
  module.def("machine_summary", machine_summary);
  module.def("machine_properties", machine_properties);
  module.def("machine_info", torch::wrap_pybind_function(machine_info));
  module.def("device_count", [] { return static_cast<int>(Machines::instance().device_count()); });
  module.def("is_initialized", [] { return Machines::instance().is_initialized(); });
  module.def("current_device", [] { return static_cast<int>(client::current_device()); });
  module.def("set_device", torch::wrap_pybind_function([](int index) {
               // remote:0 always exists; asking for it starts nothing.
               if (index != 0 || Machines::instance().is_initialized())
                 Machines::instance().place(static_cast<c10::DeviceIndex>(index));
               client::set_current_device(static_cast<c10::DeviceIndex>(index));
             }));
  module.def("exchange_device", [](int index) {
    const int before = client::current_device();
    client::set_current_device(static_cast<c10::DeviceIndex>(index));
    return before;
  });
  module.def("maybe_exchange_device", [](int index) {
    if (index < 0)
      return -1;
    const int before = client::current_device();
    client::set_current_device(static_cast<c10::DeviceIndex>(index));
    return before;
  });
  module.def("synchronize", torch::wrap_pybind_function(synchronize));
  module.def("cancel", torch::wrap_pybind_function(cancel));
  module.def("set_in_notebook", [](bool is_one) { client::is_in_notebook = is_one; });
  module.def("device_properties", torch::wrap_pybind_function(properties_of));
  module.def("announced_generators", torch::wrap_pybind_function(announced_generators));
  module.def("default_generator", torch::wrap_pybind_function(default_generator));
  module.def("set_take_back", set_take_back);
  module.def("raise_own_failure", torch::wrap_pybind_function(raise_own_failure));
  module.def("has_failure", has_failure, py::arg("thread") = 0);
  module.def("current_thread", client::current_thread);
  module.def("enter_backward", client::enter_backward);
  module.def("leave_backward", client::leave_backward);
  module.def("call_number", torch::wrap_pybind_function(call_number));
  module.def("take_rng_state", torch::wrap_pybind_function(take_rng_state));
  module.def("begin_downloads", client::Prefetch::begin);
  module.def("plan_download", torch::wrap_pybind_function(plan_download));
  module.def("end_downloads", client::Prefetch::end);
  define_reads(module);
  define_files(module);
  define_memory(module);
  define_steps(module);
  module.def("has_profiler", client::has_profiler);
  module.def("take_profile_notes", client::take_profile_notes);
  module.def("profile_memory",
             [](bool is_on) { client::MemoryHistory::instance().set_profiled(is_on); });
  define_distributed(module);
  define_graphs(module);
  module.def("set_progress_hooks", set_progress_hooks);
  module.def("set_show_warning", set_show_warning);
  module.def("set_progress_shown", client::TransferProgress::set_shown);
  module.def("bytes_moved", bytes_moved);
  module.def("counters", counters);
  module.def("waits_by_line", waits_by_line);
  module.def("kept_download_bytes", [] { return client::DownloadMemory::instance().kept_bytes(); });
  module.def("empty_host_memory", [] {
    client::DownloadMemory::instance().empty();
    client::SentSources::instance().free_done();
  });
  module.def("server_mispredicted", torch::wrap_pybind_function(server_mispredicted));
  module.def("context", torch::wrap_pybind_function(client::own_settings));
  module.def("server_context", torch::wrap_pybind_function(server_context));
  module.def("operator_facts", torch::wrap_pybind_function(operator_facts));
  module.def("is_in_bad_fork", [] { return client::in_forked_child(); });
  module.def("refuse_in_bad_fork", torch::wrap_pybind_function([] {
               if (client::in_forked_child())
                 client::refuse_in_forked_child();
             }));
  module.def("set_fork_advice", client::set_fork_advice);
  module.def("set_mixing_advice",
             [](std::string text) { client::mixing_advice().set(std::move(text)); });
  module.def("shutdown", torch::wrap_pybind_function([](bool is_interrupted) {
               const bool has_told_all = Machines::instance().shutdown(is_interrupted);
               if (!has_told_all)
                 fail_at_exit();
               let_gil_takers_pass();
               return has_told_all;
             }));
}

}  // namespace torch_remote::bindings
