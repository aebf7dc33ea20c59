#!/usr/bin/env python3
"""Write the table of PyTorch's own C++ shape functions, at::meta::…, by operator name.

Read from the installed PyTorch's headers, so that it fits whatever version is built against:
ATen/ops/<op>_meta_dispatch.h says which functions there are, ATen/ops/<op>_ops.h which operator
overload has which C++ type. A function belongs to the operator whose C++ type it has. Structured
operators only: theirs are exported, and exact.
"""

import argparse
import pathlib
import re

PARTS = 4
STRUCT = re.compile(
    r"struct TORCH_API (\w+) \{\s*using schema = (.*?);.*?"
    r'name = "(aten::\w+)";.*?overload_name = "(\w*)";.*?schema_str = "(.*?)";',
    re.S,
)
DECLARATION = re.compile(r"^TORCH_API (.*?) (\w+)\((.*)\);$", re.M)


def split_parameters(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "<({") - (character in ">)}")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text.strip() else []


def normal(cpp_type: str) -> str:
    return re.sub(r"\s+|::(?=std)|at::|c10::", "", cpp_type)


def parameter_type(parameter: str) -> str:
    """`const at::Scalar & alpha=1` → the type alone."""
    without_default = re.sub(r"=.*", "", parameter).strip()
    return normal(re.sub(r"\w+$", "", without_default))


def is_out(schema: str) -> bool:
    """Whether an argument after the star is written: the `out=` forms."""
    arguments = schema.split(") ->")[0]
    return ", *, " in arguments and bool(re.search(r"\(\w!\)", arguments.split(", *, ")[1]))


def entries(ops: pathlib.Path) -> list[tuple[str, str, str, str]]:
    """(header stem, struct in at::_ops, function in at::meta, operator name) of each."""
    found = []
    for dispatch in sorted(ops.glob("*_meta_dispatch.h")):
        stem = dispatch.name.removesuffix("_meta_dispatch.h")
        if not (ops / f"{stem}_meta.h").exists():
            continue  # declared, but libtorch does not export it
        declared = {
            (name, tuple(parameter_type(p) for p in split_parameters(parameters)))
            for _, name, parameters in DECLARATION.findall(dispatch.read_text())
        }
        structs = STRUCT.findall((ops / f"{stem}_ops.h").read_text())
        for struct, cpp_type, name, overload, schema in structs:
            base = name.removeprefix("aten::") + ("_symint" if "SymInt" in cpp_type else "")
            function = base + ("_outf" if is_out(schema) else "")
            parameters = cpp_type[cpp_type.index(" (") + 2 : cpp_type.rindex(")")]
            types = tuple(normal(p) for p in split_parameters(parameters))
            if (function, types) in declared:
                found.append((stem, struct, function, f"{name}.{overload}" if overload else name))
    return found


def source(part: int, rows: list[tuple[str, str, str, str]]) -> str:
    lines = ["// Made by tools/gen_meta_table.py.", '#include "client/operators/meta_table.h"', ""]
    for stem in sorted({row[0] for row in rows}):
        lines += [
            f"#include <ATen/ops/{stem}_meta_dispatch.h>",
            f"#include <ATen/ops/{stem}_ops.h>",
        ]
    lines += ["", "namespace torch_remote::client {", ""]
    lines += [f"void fill_meta_table_{part}(MetaTable& table) {{"]
    lines += [
        f'  add_meta<at::_ops::{struct}::schema>(table, "{full}", &at::meta::{function});'
        for _, struct, function, full in rows
    ]
    return "\n".join([*lines, "}", "", "}  // namespace torch_remote::client", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include-dir", type=pathlib.Path, required=True)
    parser.add_argument("--out-dir", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out_dir.mkdir(parents=True, exist_ok=True)
    table = entries(options.include_dir / "ATen" / "ops")
    if not table:
        raise SystemExit(f"no shape functions found under {options.include_dir}")
    for part in range(PARTS):
        path = options.out_dir / f"meta_table_{part}.cpp"
        text = source(part, table[part::PARTS])
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
