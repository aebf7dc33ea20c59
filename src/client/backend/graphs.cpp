#include "client/backend/graphs.h"

#include <torch/version.h>

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12

#include <string>

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceType.h>

#include "client/programs/graph.h"

namespace torch_remote::client {
namespace {

class AcceleratorGraph : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs& /*arguments*/) {}

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode /*mode*/) override {
    graph_.begin();
    pool_ = pool;
  }

  void capture_end() override { graph_.end(); }

  void instantiate() override {}

  void replay() override { graph_.replay(); }

  void reset() override { graph_.reset(); }

  at::MempoolId_t pool() const override { return pool_; }

  void enable_debug_mode() override {}

  void debug_dump(const std::string& /*path*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "torch.accelerator.Graph has no dump on this device; make a "
                                "torch_remote.Graph(), which has debug_dump()");
  }

 private:
  Graph graph_;
  at::MempoolId_t pool_{0, 0};  // a name: it changes nothing
};

}  // namespace

void register_graphs() {
  const std::string name = c10::DeviceTypeName(c10::kPrivateUse1, /*lower_case=*/false);
  if (at::GraphImplRegistry()->Has(name))
    return;
  at::GraphImplRegistry()->Register(
      name, [](const at::GraphImplArgs& arguments) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<AcceleratorGraph>(arguments);
      });
}

}  // namespace torch_remote::client

#else

namespace torch_remote::client {

void register_graphs() {}

}  // namespace torch_remote::client

#endif
