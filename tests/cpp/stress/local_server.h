#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "server/device/devices.h"
#include "server/operators/operators.h"
#include "server/session/handshake.h"
#include "server/session/session.h"
#include "transport/address.h"
#include "transport/fd_stream.h"

namespace torch_remote::stress {

// A server for one client in this process, so that a sanitizer sees both.
class LocalServer {
 public:
  LocalServer() : path_(make_path()), listener_(listen_at(path_)), thread_([this] { serve(); }) {}

  ~LocalServer() {
    thread_.join();
    std::filesystem::remove(path_);
  }

  std::string url() const { return "unix://" + path_; }

  // Tells the client that it is over. Once, and after it has connected.
  void stop() {
    begun_.get_future().get()->stop("the server was stopped", std::chrono::seconds(1));
  }

 private:
  static std::string make_path() {
    return (std::filesystem::temp_directory_path() /
            ("torch-remote-stress-" + std::to_string(::getpid())))
        .string();
  }

  static Fd listen_at(const std::string& path) {
    std::filesystem::remove(path);
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = transport::SocketAddress::unix_path(path);
    if (::bind(socket.get(), address.get(), address.size()) != 0 || ::listen(socket.get(), 1) != 0)
      throw std::runtime_error("cannot listen at " + path);
    return socket;
  }

  void serve() {
    auto stream = transport::socket_stream(
        Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), "the test");
    const server::Greeting greeting = server::greet(*stream, std::nullopt, {});
    wire::Welcome welcome;
    welcome.version = greeting.version;
    welcome.session = "0000002a";
    welcome.host = "this process";
    welcome.torch_version = table_.torch_version();
    welcome.operators = table_.digest();
    welcome.devices = devices_.properties();
    server::describe_libraries(welcome);
    server::send_welcome(*stream, welcome);
    session_ = std::make_unique<server::Session>(std::move(stream), devices_, table_,
                                                 server::Session::Hooks());
    begun_.set_value(session_.get());
    session_->run();
  }

  const server::Devices devices_{c10::DeviceType::CPU, 1};
  const server::OperatorTable table_;
  const std::string path_;
  const Fd listener_;
  std::promise<server::Session*> begun_;
  std::unique_ptr<server::Session> session_;  // of the thread, until it has begun
  std::thread thread_;
};

}  // namespace torch_remote::stress
