"""tools/check_classes.py, on small headers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEADER = """
class Example : public Base {
 public:
  explicit Example(Options options = {}) : options_(std::move(options)) {}
  ~Example();
  Example& operator=(const Example&) = delete;

  // Comments (with parentheses) are no functions.
  template <typename Use>
  void use(Use&& use);
  std::vector<std::byte> query(int kind, const std::function<void(Writer&)>& write = nullptr);
  size_t size() const { return items_.size(); }
  void run() override;
  std::function<void()> hook;

 protected:
  void hidden();

 private:
  void secret() REQUIRES(mutex_);
};

struct Plain {
  int number = 0;
  bool is_good() const { return check(number); }
};
"""


def test_only_public_functions_count() -> None:
    spec = importlib.util.spec_from_file_location("check_classes", ROOT / "tools/check_classes.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert list(tool.classes(HEADER)) == [
        ("Example", ["use", "query", "size"]),
        ("Plain", ["is_good"]),
    ]
