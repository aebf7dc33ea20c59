#include <array>
#include <map>

#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/parts.h"
#include "client/backend/allocator.h"
#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/process/memory_history.h"
#include "client/process/records.h"
#include "client/session/session.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using client::MemoryHistory;

// {"free": …, "allocated_bytes.all.current": …, …} after the action: 0 ask, 1 empty the
// cache, 2 reset peaks, 3 reset totals.
py::dict memory_figures(int device, int action) {
  wire::MemoryFigures figures;
  {
    const py::gil_scoped_release no_gil;
    figures = client::device_memory(static_cast<c10::DeviceIndex>(device),
                                    static_cast<wire::MemoryAction>(action));
  }
  py::dict all;
  all["free"] = figures.free;
  all["total"] = figures.total;
  all["num_alloc_retries"] = figures.retries;
  all["num_ooms"] = figures.ooms;
  for (const wire::MemoryStat& stat : figures.stats) {
    all[py::str(stat.name + ".current")] = stat.current;
    all[py::str(stat.name + ".peak")] = stat.peak;
    all[py::str(stat.name + ".allocated")] = stat.allocated;
    all[py::str(stat.name + ".freed")] = stat.freed;
  }
  return all;
}

void set_memory_fraction(int device, double fraction) {
  const py::gil_scoped_release no_gil;
  client::limit_device_memory(static_cast<c10::DeviceIndex>(device), fraction);
}

double memory_fraction(int device) {
  const py::gil_scoped_release no_gil;
  return client::device_memory_limit(static_cast<c10::DeviceIndex>(device));
}

// Numbers stacks, so that each is made into Python objects once.
class StackNumbers {
 public:
  // -1: not recorded.
  int of(const client::Stack& stack) {
    if (stack == nullptr)
      return -1;
    const auto [place, is_new] = numbers_.emplace(stack.get(), static_cast<int>(stacks_.size()));
    if (is_new)
      stacks_.append(to_list(*stack));
    return place->second;
  }

  py::list all() const { return stacks_; }

 private:
  static py::list to_list(const std::vector<client::LineId>& lines) {
    py::list frames;
    for (const client::LineId id : lines) {
      const client::SourceLine line = client::line_of(id);
      const bool is_in_backward = (id & client::kInBackward) != 0;
      frames.append(py::make_tuple(line.file, line.number,
                                   is_in_backward ? line.function + " (backward)" : line.function));
    }
    return frames;
  }

  std::map<const void*, int> numbers_;
  py::list stacks_;
};

// What the client knows of a device's memory: (storages, events, stacks). A storage is (address,
// bytes, stream, stack), an event (kind, address, bytes, stream, time, stack), a stack a list of
// (file, line, function). None if there is no such device, or it is lost.
py::object memory_history(int index, bool with_events) {
  const auto place =
      client::Machines::instance().place_if_there(static_cast<c10::DeviceIndex>(index));
  if (place.session == nullptr || place.session->link().is_lost())
    return py::none();
  StackNumbers stacks;
  py::list storages;
  uint64_t bytes = 0;
  for (const auto& storage : client::RecordPool::instance().live_of(place.session, place.device)) {
    bytes += storage.bytes;
    storages.append(py::make_tuple(storage.address, storage.bytes, storage.stream,
                                   stacks.of(MemoryHistory::instance().stack_of(storage.address))));
  }
  py::list events;
  if (with_events) {
    MemoryHistory::instance().note_snapshot(place.session, place.device, bytes);
    for (const auto& event : MemoryHistory::instance().events(place.session, place.device))
      events.append(py::make_tuple(static_cast<int>(event.kind), event.address, event.bytes,
                                   event.stream, event.time_us, stacks.of(event.stack)));
  }
  return py::make_tuple(storages, events, stacks.all());
}

// The frames of the storage at this address, or None.
py::object allocation_stack(uint64_t address) {
  const client::Stack stack = MemoryHistory::instance().stack_of(address);
  if (stack == nullptr)
    return py::none();
  StackNumbers stacks;
  stacks.of(stack);
  return stacks.all()[0];
}

// `stacks` as client::RecordedStacks, `skipped` as client::MemoryEventKind.
void record_memory(bool is_on, int stacks, uint64_t max_events, bool clears,
                   const std::vector<int>& skipped) {
  client::HistoryOptions options;
  options.is_on = is_on;
  options.stacks = static_cast<client::RecordedStacks>(stacks);
  options.max_events = max_events;
  options.clears = clears;
  for (const int kind : skipped)
    options.skipped.at(static_cast<size_t>(kind)) = true;
  MemoryHistory::instance().set(options);
}

// ({"utilization": …}, [(pid, bytes or None)] or None): what NVML on the server tells.
py::tuple device_telemetry(int index) {
  wire::Telemetry telemetry;
  {
    const py::gil_scoped_release no_gil;
    const auto place = client::Machines::instance().place(static_cast<c10::DeviceIndex>(index));
    telemetry = client::device_telemetry(*place.session, place.device);
  }
  static constexpr std::array<const char*, wire::kTelemetryFigures> kNames = {
      "utilization", "memory usage", "memory used", "temperature", "power draw", "clock rate"};
  py::dict figures;
  for (size_t i = 0; i < kNames.size(); ++i)
    if (telemetry.figures[i].has_value())
      figures[kNames[i]] = *telemetry.figures[i];
  if (!telemetry.has_processes)
    return py::make_tuple(figures, py::none());
  py::list processes;
  for (const wire::GpuProcess& process : telemetry.processes) {
    const py::object bytes = process.has_bytes ? py::object(py::int_(process.bytes)) : py::none();
    processes.append(py::make_tuple(process.pid, bytes));
  }
  return py::make_tuple(figures, processes);
}

// Whether the tensor's memory may not exist: the call that was to make it failed, or was discarded.
// Calls of other threads are suspected too: see Faults::Report.
bool may_be_missing(py::handle tensor) {
  const auto* const record =
      client::own_record(*THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl());
  return record != nullptr &&
         client::session_of(*record)->faults().may_be_discarded(record->made_by);
}

}  // namespace

void define_memory(py::module_& module) {
  module.def("memory_figures", torch::wrap_pybind_function(memory_figures));
  module.def("set_memory_fraction", torch::wrap_pybind_function(set_memory_fraction));
  module.def("memory_fraction", torch::wrap_pybind_function(memory_fraction));
  module.def("memory_history", memory_history);
  module.def("device_telemetry", torch::wrap_pybind_function(device_telemetry));
  module.def("allocation_stack", allocation_stack);
  module.def("record_memory", record_memory);
  module.def("may_be_missing", may_be_missing);
}

}  // namespace torch_remote::bindings
