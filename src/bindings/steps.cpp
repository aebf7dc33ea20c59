// A note is taken before every step() of an optimizer and must cost next to nothing; and no tensor
// of the program, of whatever class, may stop a restoration. So this is C++ that runs no Python
// code of others: no isinstance(), no attribute, no hash of a tensor. The exceptions: sequences
// that are neither list nor tuple, and `state` and `param_groups` of the optimizer.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/variable.h>

#include "bindings/found_state.h"
#include "bindings/parts.h"
#include "client/machines/machines.h"
#include "client/process/threads.h"
#include "client/session/session.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

py::object groups_of(const py::object& optimizer) {
  static PyObject* const kName = PyUnicode_InternFromString("param_groups");
  return attribute(optimizer, kName);
}

using Sessions = std::vector<client::Session*>;

// What a step of an optimizer, or a method of a GradScaler, has found, and its calls. Needs the
// GIL.
class Note {
 public:
  // `found` is what a GradScaler knew.
  explicit Note(const Sessions& sessions, py::object found = {}) : found_(std::move(found)) {
    last_.reserve(sessions.size());
    for (client::Session* const session : sessions)
      last_.emplace_back(session, 0);
  }

  std::shared_ptr<FoundState> state;  // of an optimizer

  py::object found() const { return state ? py::cast(state) : found_; }

  uint64_t thread() const { return thread_; }

  bool has_ended() const { return has_ended_; }

  void end() {
    for (auto& [session, call] : last_)
      call = session->order().submitted();
    has_ended_ = true;
  }

  // Whether it has ended with or after that call.
  bool ended_since(uintptr_t session, uint64_t since) const {
    return std::ranges::any_of(last_, [&](const auto& each) {
      return reinterpret_cast<uintptr_t>(each.first) == session && each.second >= since;
    });
  }

  // Whether nothing will be restored from it: its thread has ended, or its calls have succeeded.
  bool is_done() const {
    return (thread_ != client::current_thread() && client::has_ended(thread_)) || succeeded();
  }

 private:
  // Whether all are done and no failure of its thread is to be raised. The server reports a failure
  // before it says that the call is done, so failures are looked for last.
  bool succeeded() const {
    const bool are_done =
        has_ended_ && std::ranges::all_of(last_, [](const auto& each) {
          const auto& [session, call] = each;  // of a lost session nothing more comes
          return session->link().is_lost() || client::calls_done(*session) >= call;
        });
    return are_done &&
           std::ranges::none_of(client::Machines::instance().sessions(),
                                [this](auto* session) { return session->faults().has(thread_); });
  }

  py::object found_;
  std::vector<std::pair<client::Session*, uint64_t>> last_;  // sessions are never deleted
  uint64_t thread_ = client::current_thread();
  bool has_ended_ = false;
};

// Calls `use` with each tensor that is a parameter in groups until it returns true.
template <typename Use>
bool any_parameter(const py::object& groups, Use&& use) {
  return any_item(groups.ptr(), [&](PyObject* group) {
    static PyObject* const kName = PyUnicode_InternFromString("params");
    PyObject* const parameters = PyDict_Check(group) ? PyDict_GetItem(group, kName) : nullptr;
    if (parameters == nullptr)
      return false;
    const auto use_tensor = [&](PyObject* object) {
      const at::Tensor* const tensor = tensor_in(object);
      return tensor != nullptr && use(*tensor);
    };
    return use_tensor(parameters) || any_item(parameters, use_tensor);
  });
}

// The remote index that a tensor is on, or -1.
c10::DeviceIndex remote_index(const at::Tensor& tensor) {
  try {
    const c10::Device device = tensor.device();
    if (device.is_privateuseone())
      return device.has_index() ? device.index() : 0;
  } catch (const std::exception&) {  // Python code answers for the device of some subclasses
    PyErr_Clear();
  }
  return -1;
}

void add_session(client::Session* session, Sessions& sessions) {
  if (session != nullptr && std::ranges::find(sessions, session) == sessions.end())
    sessions.push_back(session);
}

// The sessions of the devices that the parameters of an optimizer are on. Does not look at all
// parameters: where one machine is connected, the first that is remote is enough.
Sessions sessions_of(const py::object& groups) {
  Sessions found;
  const size_t most = client::Machines::instance().ids().size();
  any_parameter(groups, [&](const at::Tensor& tensor) {
    const c10::DeviceIndex index = remote_index(tensor);
    if (index < 0)
      return false;
    add_session(client::Machines::instance().place(index).session, found);
    return found.size() >= most;
  });
  return found;
}

// The notes of one optimizer or GradScaler. Needs the GIL.
class Notes {
 public:
  // A step of the optimizer begins. Returns how many of its steps have not ended, or 0 if no
  // parameter is on a remote device: then there is no note.
  size_t begin(const py::object& optimizer) {
    const py::object groups = groups_of(optimizer);
    const Sessions sessions = sessions_of(groups);
    if (sessions.empty())
      return 0;
    auto note = std::make_shared<Note>(sessions);
    const std::shared_ptr<FoundState> before = notes_.empty() ? nullptr : notes_.back()->state;
    note->state = std::make_shared<FoundState>(optimizer, groups, before.get());
    add(std::move(note));
    return unended_;
  }

  void add(std::shared_ptr<Note> note) {
    forget_done();
    notes_.push_back(std::move(note));
    ++unended_;
  }

  void end(Note& note) {
    if (note.has_ended())  // it was restored meanwhile
      return;
    note.end();
    --unended_;
  }

  // Ends this thread's last that has not ended: the step() of a subclass calls that of its base.
  void end_last(const py::object& optimizer) {
    const uint64_t thread = client::current_thread();
    const auto found = std::find_if(notes_.rbegin(), notes_.rend(), [&](const auto& note) {
      return !note->has_ended() && note->thread() == thread;
    });
    if (found == notes_.rend())
      return;
    const std::shared_ptr<Note> note = *found;
    end(*note);
    attempt([&] { note->state->end(groups_of(optimizer)); });
  }

  // Not only the oldest: one that never ends does not keep the later ones.
  void forget_done() {
    forget_if([](const Note& note) { return note.is_done(); });
  }

  // Ends it too.
  void remove(const std::shared_ptr<Note>& note) {
    forget_if([&](const Note& each) { return &each == note.get(); });
  }

  // How many steps have not ended: they run, or were aborted.
  size_t unended() const { return unended_; }

  // Oldest first.
  std::vector<std::shared_ptr<Note>> all() const { return {notes_.begin(), notes_.end()}; }

 private:
  template <typename IsForgotten>
  void forget_if(IsForgotten&& is_forgotten) {
    // Destroyed at the end, because that may run Python code, which may come here again.
    std::vector<std::shared_ptr<Note>> forgotten;
    std::erase_if(notes_, [&](const std::shared_ptr<Note>& note) {
      if (!is_forgotten(*note))
        return false;
      end(*note);
      forgotten.push_back(note);
      return true;
    });
  }

  std::deque<std::shared_ptr<Note>> notes_;
  size_t unended_ = 0;
};

// With TORCH_REMOTE_CHECK_STEPS=1 a step first waits for the calls before it.
void check_calls_before_step(const py::object& optimizer) {
  const char* const setting = std::getenv("TORCH_REMOTE_CHECK_STEPS");
  if (setting == nullptr || std::string_view(setting) != "1")
    return;
  Sessions sessions;
  attempt([&] { sessions = sessions_of(groups_of(optimizer)); });
  for (client::Session* const session : sessions)
    session->synchronize();
}

// --- gradients

// Gradients of leaves that a failed or discarded call of this thread was to make become None: of
// the tensors among the objects, and of parameters. Does not ask `is_leaf` and `grad`, which raise
// for some views, and which a class may answer for.
void drop_missing_gradients(uintptr_t session, uint64_t since, const py::list& objects,
                            const py::list& groups) {
  auto& asked = *reinterpret_cast<client::Session*>(session);
  std::vector<at::Tensor> dropped;  // destroyed at the end, because that may run Python code
  const auto drop = [&](const at::Tensor& tensor) {
    auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta != nullptr && meta->grad_fn_ == nullptr && meta->grad_.defined() &&
        client::is_missing(asked, meta->grad_, since))
      dropped.push_back(std::exchange(meta->grad_, at::Tensor()));
    return false;
  };
  for (const py::handle object : objects)
    if (const at::Tensor* const tensor = tensor_in(object.ptr()))
      drop(*tensor);
  any_parameter(groups, drop);
}

}  // namespace

void define_steps(py::module_& module) {
  py::class_<FoundState, std::shared_ptr<FoundState>>(module, "FoundState")
      .def_property_readonly("state", &FoundState::state)
      .def_property_readonly("error", &FoundState::error)
      .def_property_readonly("owners", &FoundState::owners)
      .def("states", &FoundState::states)
      .def("groups", &FoundState::groups)
      .def("groups_after", &FoundState::groups_after)
      .def("restore_counters", &FoundState::restore_counters);
  py::class_<Note, std::shared_ptr<Note>>(module, "Note")
      .def(py::init([](const std::vector<int>& devices, py::object found) {
        Sessions sessions;
        const auto& machines = client::Machines::instance();
        for (const int device : devices)
          add_session(machines.place_if_there(static_cast<c10::DeviceIndex>(device)).session,
                      sessions);
        return std::make_shared<Note>(sessions, std::move(found));
      }))
      .def_property_readonly("found", &Note::found)
      .def_property_readonly("thread", &Note::thread)
      .def_property_readonly("has_ended", &Note::has_ended)
      .def("ended_since", &Note::ended_since);
  py::class_<Notes>(module, "Notes")
      .def(py::init())
      .def("begin", torch::wrap_pybind_function(&Notes::begin))
      .def("add", &Notes::add)
      .def("end", &Notes::end)
      .def("end_last", &Notes::end_last)
      .def("forget_done", &Notes::forget_done)
      .def("remove", &Notes::remove)
      .def("all", &Notes::all)
      .def_property_readonly("unended", &Notes::unended);
  module.def("check_calls_before_step", torch::wrap_pybind_function(check_calls_before_step));
  module.def("drop_missing_gradients", drop_missing_gradients);
}

}  // namespace torch_remote::bindings
