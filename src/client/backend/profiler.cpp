// Compiled where torch has Kineto's headers, else profiler_absent.cpp.
#include "client/backend/profiler.h"

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>

#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>

#include <ATen/record_function.h>

#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)  // since torch 2.13
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#define TORCH_REMOTE_HAS_PROFILER_REGISTRY
#endif

#include "base/mutex.h"
#include "client/backend/device_profile.h"
#include "client/machines/machines.h"
#include "client/process/waits_by_line.h"

namespace torch_remote::client {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

const std::set<ActivityType> kActivities = {ActivityType::CONCURRENT_KERNEL,
                                            ActivityType::PRIVATEUSE1_RUNTIME};

// Viewers show rows of processes in this order. Kineto's own rows of devices begin there too, below
// the threads of the process.
constexpr int64_t kFirstDeviceRow = 5'000'000;
// Numbers of arrows that CUDA's profiler, which counts its own from 1, does not reach. PyTorch
// asserts that two arrows of a profile do not have the same.
constexpr uint32_t kFirstArrow = 1U << 31;

// Kineto writes texts into the trace as they are, but for backslashes, which it makes slashes: a
// quotation mark cannot be escaped.
std::string without_quotes(std::string text) {
  for (char& c : text) {
    if (c == '"')
      c = '\'';
    else if (c == '\\')
      c = '/';
    else if (static_cast<unsigned char>(c) < 0x20)
      c = ' ';
  }
  return text;
}

// The order of the fields differs between versions of Kineto.
libkineto::ResourceInfo stream_row(int64_t device, int64_t stream) {
  const std::string name = "stream " + std::to_string(stream);
  if constexpr (std::is_aggregate_v<libkineto::ResourceInfo>)
    return {stream, stream, device, name};
  else
    return {device, stream, stream, name};
}

// The profile of all sessions. Kineto calls start(), stop() and processTrace() on one thread, and
// the others on the threads of the operations.
class ProfilerSession : public libkineto::IActivityProfilerSession {
 public:
  void start() override;

  void stop() override;

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(
        logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback find_operation, int64_t start,
                    int64_t end) override;

  // Not one row but several: name_rows().
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override;

  // Never null: Kineto does not expect that.
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    name_rows();
    return std::exchange(trace_, make_trace());
  }

  void pushCorrelationId(uint64_t id) override {
    add_new_sessions();
    each_profile([&](DeviceProfile& profile) { profile.begin_operation(id); });
  }

  void popCorrelationId() override {
    each_profile([](DeviceProfile& profile) { profile.end_operation(); });
  }

 private:
  static std::unique_ptr<libkineto::CpuTraceBuffer> make_trace() {
    auto trace = std::make_unique<libkineto::CpuTraceBuffer>();
    trace->span.name = "torch_remote";
    trace->gpuOpCount = 0;
    return trace;
  }

  struct Row {
    std::string name;
    std::set<int64_t> streams;
  };

  // Starts to profile the sessions that were opened since.
  void add_new_sessions();
  std::unique_ptr<DeviceProfile> try_to_profile(Session& session);
  void add_slices(DeviceProfile& profile);
  void add_send(GenericTraceActivity& slice, uint32_t arrow);
  void name_rows();

  template <typename Use>
  void each_profile(Use&& use) {
    MutexLock lock(mutex_);
    for (const auto& profile : profiles_)
      use(*profile);
  }

  std::atomic<bool> is_on_{false};
  std::atomic<size_t> known_{0};  // how many sessions of Machines have been looked at
  Mutex mutex_;                   // not held while waiting
  std::vector<std::unique_ptr<DeviceProfile>> profiles_ GUARDED_BY(mutex_);
  std::unique_ptr<libkineto::CpuTraceBuffer> trace_ = make_trace();
  std::vector<uint64_t> operations_;             // by slice
  std::map<int64_t, Row> rows_;                  // by device
  libkineto::ActivityLogger* logger_ = nullptr;  // from processTrace() to getTraceBuffer()
  int64_t start_ = 0;
};

void ProfilerSession::start() {
  known_ = 0;
  trace_ = make_trace();
  operations_.clear();
  rows_.clear();
  status_ = libkineto::TraceStatus::RECORDING;
  is_on_ = true;
  add_new_sessions();
}

void ProfilerSession::add_new_sessions() {
  if (!is_on_ || !Machines::instance().is_initialized())
    return;
  const std::vector<Session*> sessions = Machines::instance().sessions();
  size_t next = known_.load();
  while (next < sessions.size()) {
    if (!known_.compare_exchange_strong(next, next + 1))
      continue;  // another thread profiles that one
    if (auto profile = try_to_profile(*sessions[next++])) {
      MutexLock lock(mutex_);
      profiles_.push_back(std::move(profile));
    }
  }
}

std::unique_ptr<DeviceProfile> ProfilerSession::try_to_profile(Session& session) {
  if (session.link().is_lost() || session.link().was_stopped())
    return nullptr;
  const at::DisableRecordFunctionGuard no_operations;
  const UncountedWaits uncounted;
  try {
    if (can_profile(session))
      return std::make_unique<DeviceProfile>(session);
    add_profile_note("the server of " + session.describe(0) +
                     " is older than this client, so the profile has no device times of it");
  } catch (const std::exception& error) {  // the program's next call raises it
    add_profile_note(std::string("the profile has no device times of one server: ") + error.what());
  }
  return nullptr;
}

void ProfilerSession::stop() {
  is_on_ = false;
  std::vector<std::unique_ptr<DeviceProfile>> profiles;
  {
    MutexLock lock(mutex_);
    profiles.swap(profiles_);
  }
  const at::DisableRecordFunctionGuard no_operations;
  const UncountedWaits uncounted;
  for (const auto& profile : profiles) {
    try {
      add_slices(*profile);
    } catch (const std::exception& error) {
      add_profile_note(std::string("the profile lacks device times of one server: ") +
                       error.what());
    }
  }
  trace_->gpuOpCount = static_cast<int>(trace_->activities.size());
  status_ = libkineto::TraceStatus::PROCESSING;
}

void ProfilerSession::add_slices(DeviceProfile& profile) {
  uint64_t dropped = 0;
  for (const DeviceCall& call : profile.finish(dropped)) {
    trace_->emplace_activity(trace_->span, ActivityType::CONCURRENT_KERNEL, call.name);
    GenericTraceActivity& slice = *trace_->activities.back();
    slice.startTime = call.begin;
    slice.endTime = call.begin + call.duration;
    slice.id = static_cast<int32_t>(call.number);
    slice.device = profile.session().order().index_of(call.site.device);
    slice.resource = call.stream;
    slice.addMetadata("call", call.number);
    if (const std::string line = name_line(call.site.line); !line.empty())
      slice.addMetadataQuoted("line", without_quotes(line));
    operations_.push_back(call.operation);
    Row& row = rows_[slice.device];
    if (row.name.empty())
      row.name = without_quotes(profile.session().describe(call.site.device));
    row.streams.insert(call.stream);
  }
  if (dropped > 0)
    add_profile_note("the profile lacks the device times of " + std::to_string(dropped) +
                     " calls of " + profile.session().describe(0) +
                     ": a server keeps those of the last " +
                     std::to_string(wire::kMaxProfiledCalls) + "; profile fewer steps");
}

void ProfilerSession::processTrace(libkineto::ActivityLogger& logger,
                                   libkineto::getLinkedActivityCallback find_operation,
                                   int64_t start, int64_t end) {
  trace_->span.startTime = start;
  trace_->span.endTime = end;
  logger_ = &logger;
  start_ = start;
  const size_t calls = operations_.size();  // add_send() adds slices behind those of the calls
  for (size_t i = 0; i < calls; ++i) {
    GenericTraceActivity& slice = *trace_->activities[i];
    if (operations_[i] != 0)
      slice.linked = find_operation(static_cast<int32_t>(operations_[i]));
    if (slice.linked != nullptr)
      add_send(slice, kFirstArrow + static_cast<uint32_t>(i));
    logger.handleGenericActivity(slice);
  }
  for (size_t i = calls; i < trace_->activities.size(); ++i)
    logger.handleGenericActivity(*trace_->activities[i]);
}

// Kineto draws an arrow to a slice only from another slice of the same profiler: CUDA's has one
// from cudaLaunchKernel to a kernel. When the call was sent is not measured: the slice is at the
// beginning of the operation and takes no time, so that it changes no time in the tables.
void ProfilerSession::add_send(GenericTraceActivity& slice, uint32_t arrow) {
  trace_->emplace_activity(trace_->span, ActivityType::PRIVATEUSE1_RUNTIME, "torch_remote::send");
  GenericTraceActivity& send = *trace_->activities.back();
  send.startTime = send.endTime = slice.linked->timestamp();
  send.device = static_cast<int32_t>(slice.linked->deviceId());
  send.resource = static_cast<int32_t>(slice.linked->resourceId());
  send.threadId = slice.linked->getThreadId();
  send.linked = slice.linked;
  send.flow.id = slice.flow.id = arrow;
  send.flow.type = slice.flow.type = libkineto::kLinkAsyncCpuGpu;
  send.flow.start = 1;
}

// Viewers use the last name of a row. Kineto names the rows 0 to 15 "GPU" after getDeviceInfo(), so
// this is for the last of the functions that it calls.
void ProfilerSession::name_rows() {
  for (const auto& [device, row] : rows_)
    if (logger_ != nullptr)
      logger_->handleDeviceInfo({device, kFirstDeviceRow + device, row.name, row.name}, start_);
  logger_ = nullptr;
}

std::vector<libkineto::ResourceInfo> ProfilerSession::getResourceInfos() {
  std::vector<libkineto::ResourceInfo> infos;
  for (const auto& [device, row] : rows_)
    for (const int64_t stream : row.streams)
      infos.push_back(stream_row(device, stream));
  return infos;
}

class RemoteProfiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }

  const std::set<ActivityType>& availableActivities() const override { return kActivities; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config& /*config*/) override {
    if (!wanted.contains(ActivityType::CONCURRENT_KERNEL))
      return nullptr;
    return std::make_unique<ProfilerSession>();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*start*/, int64_t /*duration*/, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "torch_remote";
};

std::unique_ptr<libkineto::IActivityProfiler> make_profiler() {
  return std::make_unique<RemoteProfiler>();
}

}  // namespace

bool has_profiler() {
  return true;
}

void register_profiler() {
#ifdef TORCH_REMOTE_HAS_PROFILER_REGISTRY
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(&make_profiler);
#else
  libkineto::api().registerProfilerFactory(&make_profiler);
#endif
}

}  // namespace torch_remote::client
