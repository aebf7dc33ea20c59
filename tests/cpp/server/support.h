#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "server/device/devices.h"
#include "server/handlers/interpreter.h"
#include "wire/key.h"
#include "wire/messages.h"

// What the tests of src/server send: messages encoded by hand, as a client would.
namespace torch_remote::server::testing {

inline wire::TensorSpec spec(std::vector<int64_t> sizes,
                             wire::Dtype dtype = wire::Dtype::kFloat32) {
  wire::TensorSpec made;
  made.dtype = dtype;
  made.strides = wire::contiguous_strides(sizes);
  made.sizes = std::move(sizes);
  return made;
}

inline wire::Output fresh(wire::TensorSpec predicted) {
  wire::Output output;
  output.kind = wire::OutputKind::kFresh;
  output.spec = std::move(predicted);
  return output;
}

inline wire::Output same_tensor(uint64_t tensor) {
  wire::Output output;
  output.kind = wire::OutputKind::kTensor;
  output.tensor = tensor;
  return output;
}

// One SIGNATURE: `SignatureText(index, operator, "aten::add", "Tensor").tensor("self", …)…`.
class SignatureText {
 public:
  SignatureText(uint32_t index, uint32_t operation, std::string name, std::string overload)
      : index_(index), operator_(operation) {
    introduction_.name = std::move(name);
    introduction_.overload = std::move(overload);
  }

  SignatureText& tensor(std::string name, const wire::TensorSpec& view, uint32_t storage,
                        std::vector<uint64_t> fresh_bytes = {}) {
    argument(std::move(name), wire::ValueKind::kTensor);
    encode(values_, view);
    values_.varint(storage);
    if (storage == storages_) {
      ++storages_;
      const bool is_fresh = !fresh_bytes.empty();
      wire::encode_storage(storage_list_, {is_fresh, device_, is_fresh ? fresh_bytes[0] : 0});
    }
    return *this;
  }

  // The parts that follow are added by part().
  SignatureText& sparse(std::string name, const wire::SparseSpec& sparse) {
    argument(std::move(name), wire::ValueKind::kSparse);
    encode(values_, sparse);
    return *this;
  }

  SignatureText& part(const wire::TensorSpec& view, uint32_t storage) {
    values_.u8(static_cast<uint8_t>(wire::ValueKind::kTensor));
    encode(values_, view);
    values_.varint(storage);
    if (storage == storages_) {
      ++storages_;
      wire::encode_storage(storage_list_, {false, device_, 0});
    }
    return *this;
  }

  SignatureText& value(std::string name, wire::ValueKind kind) {
    argument(std::move(name), kind);
    return *this;
  }

  SignatureText& integer(std::string name, int64_t number) {
    argument(std::move(name), wire::ValueKind::kInt);
    values_.zigzag(number);
    return *this;
  }

  SignatureText& text(std::string name, std::string_view value) {
    argument(std::move(name), wire::ValueKind::kString);
    values_.text(value);
    return *this;
  }

  SignatureText& integers(std::string name, const std::vector<int64_t>& numbers) {
    argument(std::move(name), wire::ValueKind::kIntList);
    values_.varint(numbers.size());
    for (const int64_t number : numbers)
      values_.zigzag(number);
    return *this;
  }

  SignatureText& outputs(std::vector<wire::Output> list) {
    outputs_known_ = true;
    outputs_ = std::move(list);
    return *this;
  }

  SignatureText& device(uint8_t index) {
    device_ = index;
    return *this;
  }

  SignatureText& known() {
    is_known_ = true;
    return *this;
  }

  void append_to(wire::Writer& writer) const {
    wire::Writer key;
    key.varint(operator_);
    key.u8(device_);
    key.u8(0);
    key.varint(introduction_.arguments.size());
    key.raw(values_.view());
    key.varint(storages_);
    key.raw(storage_list_.view());
    wire::SignatureParts parts;
    parts.index = index_;
    parts.operator_id = operator_;
    parts.introduction = is_known_ ? nullptr : &introduction_;
    parts.key = key.view();
    parts.outputs_known = outputs_known_;
    parts.outputs = outputs_;
    wire::encode_signature(writer, parts);
  }

 private:
  void argument(std::string name, wire::ValueKind kind) {
    introduction_.arguments.push_back(std::move(name));
    values_.u8(static_cast<uint8_t>(kind));
  }

  uint32_t index_;
  uint32_t operator_;
  uint8_t device_ = 0;
  bool is_known_ = false;
  wire::Introduction introduction_;
  wire::Writer values_;
  wire::Writer storage_list_;
  uint32_t storages_ = 0;
  bool outputs_known_ = false;
  std::vector<wire::Output> outputs_;
};

// The messages of one frame. A message that tag() has begun ends where the next one begins.
class FrameText {
 public:
  FrameText& signature(const SignatureText& text) {
    end_message();
    text.append_to(writer);
    return *this;
  }

  FrameText& call(uint32_t index) {
    tag(wire::Tag::kCall);
    writer.varint(index);
    return *this;
  }

  FrameText& query(uint64_t request, wire::QueryKind kind) {
    tag(wire::Tag::kQuery);
    writer.varint(request);
    writer.u8(static_cast<uint8_t>(kind));
    return *this;
  }

  FrameText& query_call(uint64_t request, uint32_t index, uint64_t first, uint64_t count) {
    query(request, wire::QueryKind::kCall);
    for (const uint64_t field : {uint64_t{index}, first, count})
      writer.varint(field);
    return *this;
  }

  FrameText& checked_call(uint64_t request, uint32_t index) {
    query(request, wire::QueryKind::kCheckedCall);
    writer.varint(index);
    return *this;
  }

  FrameText& storage(uint64_t name, uint64_t offset = 0) {
    wire::encode_storage_slot(writer, names, name, offset);
    return *this;
  }

  FrameText& offset(uint64_t elements) {
    writer.varint(elements);
    return *this;
  }

  FrameText& real(double number) {
    writer.f64(number);
    return *this;
  }

  FrameText& whole(int64_t number) {
    writer.zigzag(number);
    return *this;
  }

  FrameText& generator(uint64_t name) {
    writer.varint(name);
    return *this;
  }

  FrameText& output(uint64_t name) {
    wire::encode_name(writer, names, name);
    return *this;
  }

  FrameText& resize(uint64_t name, uint64_t nbytes, uint8_t device = 0) {
    return message(wire::Resize{name, device, nbytes});
  }

  FrameText& upload(uint64_t name, const std::vector<float>& values, uint64_t offset = 0) {
    wire::Begin begin;
    begin.upload = 1;
    begin.storage = name;
    begin.offset = offset;
    begin.bytes = std::as_bytes(std::span(values));
    begin.length = begin.bytes.size();
    begin.is_inline = true;
    return message(begin);
  }

  FrameText& store(uint64_t name, const std::vector<float>& values) {
    return resize(name, values.size() * sizeof(float)).upload(name, values);
  }

  FrameText& read(uint64_t request, uint64_t name, const wire::TensorSpec& view,
                  uint64_t offset = 0) {
    return message(wire::Read{request, name, offset, view});
  }

  FrameText& thread(uint64_t number) {
    end_message();
    wire::encode_thread(writer, number);
    return *this;
  }

  FrameText& go_on(uint64_t number) {
    end_message();
    wire::encode_go_on(writer, number);
    return *this;
  }

  FrameText& cancel(uint64_t call) {
    end_message();
    wire::encode_cancel(writer, call);
    return *this;
  }

  FrameText& free(const std::vector<uint64_t>& freed) {
    end_message();
    wire::encode_free(writer, freed);
    return *this;
  }

  template <typename Body>
  FrameText& message(const Body& body) {
    end_message();
    encode(writer, body);
    return *this;
  }

  FrameText& tag(wire::Tag tag) {
    end_message();
    writer.u8(static_cast<uint8_t>(tag));
    length_at_ = writer.size();
    writer.u8(0);
    return *this;
  }

  std::span<const std::byte> bytes() {
    end_message();
    return writer.view();
  }

 private:
  void end_message() {
    if (length_at_ != 0)
      writer.patch_length(length_at_);
    length_at_ = 0;
  }

  size_t length_at_ = 0;  // of the message that has not ended; 0: none

 public:
  wire::Writer writer;
  wire::NameState names;
};

// One reply as a client sees it.
struct Reply {
  uint64_t request = 0;
  bool failed = false;
  std::vector<std::byte> body;
  wire::Error error;

  std::vector<float> floats() const {
    std::vector<float> values(body.size() / sizeof(float));
    if (!body.empty())
      std::memcpy(values.data(), body.data(), body.size());
    return values;
  }
};

inline std::vector<Reply> decode_replies(std::span<const std::byte> payload) {
  std::vector<Reply> replies;
  wire::Reader reader(payload);
  while (!reader.empty()) {
    wire::ReceivedMessage message = wire::next_message(reader);
    if (message.tag == wire::Tag::kProgress)  // whether there is one is a matter of time
      continue;
    Reply reply;
    reply.failed = message.tag == wire::Tag::kError;
    if (reply.failed) {
      reply.request = message.body.varint();
      reply.error = wire::decode_error(message.body);
    } else {
      const wire::Reply good = wire::decode_reply(message.body);
      reply.request = good.request;
      reply.body.assign(good.body.begin(), good.body.end());
    }
    replies.push_back(std::move(reply));
  }
  return replies;
}

// A session's interpreter without a connection.
class Server {
 public:
  explicit Server(unsigned devices = 1, uint64_t max_memory = UINT64_MAX,
                  std::shared_ptr<const SharedFolders> files = nullptr)
      : devices_(c10::DeviceType::CPU, devices),
        interpreter(devices_, table_, uploads, replies,
                    {.max_memory = max_memory, .files = std::move(files)}) {
    apply(FrameText().thread(1));
  }

  std::vector<Reply> apply(FrameText& frame) {
    interpreter.apply(frame.bytes());
    std::vector<std::byte> sent = replies.take();
    std::vector<Reply> decoded = decode_replies(sent);
    for (const Reply& reply : decoded)
      if (reply.request == 0)
        notices.push_back(reply.error);
    std::erase_if(decoded, [](const Reply& reply) { return reply.request == 0; });
    return decoded;
  }

  std::vector<Reply> apply(FrameText&& frame) { return apply(frame); }

  // A READ in a frame of its own.
  Reply read(uint64_t name, const wire::TensorSpec& view, uint64_t offset = 0) {
    return apply(FrameText().read(1, name, view, offset)).at(0);
  }

 private:
  const c10::InferenceMode inference_mode_;
  const Devices devices_;
  const OperatorTable table_;

 public:
  Uploads uploads;
  Replies replies;
  Interpreter interpreter;
  std::vector<wire::Error> notices;  // what the server has said unasked
};

inline SignatureText add_signature(uint32_t index, uint32_t operation, std::vector<int64_t> sizes) {
  SignatureText text(index, operation, "aten::add", "Tensor");
  text.tensor("self", spec(sizes), 0).tensor("other", spec(sizes), 1);
  text.value("alpha", wire::ValueKind::kScalarFloat).outputs({fresh(spec(sizes))});
  return text;
}

}  // namespace torch_remote::server::testing
