"""Feeds each gate a tree that breaks it and the same tree put right."""

import pathlib
import shutil
import tempfile
import unittest

import lint

HEADER = "#pragma once\n"


def findings(check, files):
    """What one gate says about a tree given as {path: text}: a list of 'path:line: message'."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return [f"{path}:{line}: {message}" for path, line, message in check(lint.Tree(root, files))]


def including(*names):
    return HEADER + "".join(f"#include <palimpsest/{name}>\n" for name in names)


class Gate(unittest.TestCase):
    def refuses(self, check, files, *expected):
        found = findings(check, files)
        self.assertEqual(len(found), len(expected), found)
        for finding, part in zip(found, expected):
            self.assertIn(part, finding)

    def accepts(self, check, files):
        self.assertEqual(findings(check, files), [])


class Sizes(Gate):
    def test_file_of_601_lines(self):
        self.refuses(lint.check_file_size, {"core/base/a.cc": "\n" * 601}, "core/base/a.cc:1: 601 lines")
        self.accepts(lint.check_file_size, {"core/base/a.cc": "\n" * 600})
        self.refuses(lint.check_file_size, {"dev": "\n" * 601}, "dev:1:")

    def test_function_of_81_lines(self):
        for head in ("int f(int a) {", "Plan::Plan(int a) : a_{a}, b_(2) {", "TEST(Plan, IsLong) {",
                     "template <typename T>\nauto f(T t) -> std::vector<T> {", "struct Op f() {", "auto f() const noexcept {"):
            lines = head.count("\n") + 1
            body = "  if (x) { y(); }\n" * (80 - lines)
            text = f"namespace a {{\n{head}\n{body}}}\n}}\n"
            self.refuses(lint.check_function_size, {"a.cc": text}, "a.cc:2:")
            self.accepts(lint.check_function_size, {"a.cc": text.replace("  if (x) { y(); }\n", "", 1)})

    def test_classes_namespaces_tables_and_literals_are_no_functions(self):
        lines = "  int x;\n" * 100
        self.accepts(lint.check_function_size, {"a.h": f"class A : public B {{\n public:\n{lines}}};\n"})
        self.accepts(lint.check_function_size, {"a.h": f"namespace a::b {{\n{lines}}}\nenum class E {{\n{lines}}};\n"})
        self.accepts(lint.check_function_size, {"a.h": "const auto table = {\n" + "  f(1),\n" * 100 + "};\n"})
        self.accepts(lint.check_function_size, {"a.h": 'auto s = "f() {";\n// g() {\nchar c = \'{\';\n' + lines})
        self.accepts(lint.check_function_size, {"a.h": 'auto s = R"(f() {)";\nint n = 1\'000;\n' + lines})

    def test_long_method_in_a_class_is_found(self):
        text = "class A {\n public:\n  int f() {\n" + "    g();\n" * 80 + "  }\n};\n"
        self.refuses(lint.check_function_size, {"a.h": text}, "a.h:3: 'int f()' has 82 lines")

    def test_python_function(self):
        self.refuses(lint.check_function_size, {"a.py": "def f():\n" + "  x = 1\n" * 80}, "'f' has 81 lines")
        self.accepts(lint.check_function_size, {"a.py": "def f():\n" + "  x = 1\n" * 79})


class Marks(Gate):
    def test_unfinished(self):
        for mark in ("TO" "DO", "FIX" "ME", "X" "XX"):
            self.refuses(lint.check_unfinished, {"docs/a.md": f"one\n{mark}: two\n"}, "docs/a.md:2:")
        self.accepts(lint.check_unfinished, {"a.md": "METHODOLOGY todos", "tests/data/a.txt": "X" "XX"})

    @unittest.skipUnless(shutil.which("clang-format"), "no clang-format here")
    def test_format(self):
        style = "BasedOnStyle: LLVM\n"
        self.refuses(lint.check_format, {".clang-format": style, "a.cc": "int  a;\n", "b.cc": "int b;\n"}, "a.cc:1:")
        self.accepts(lint.check_format, {".clang-format": style, "a.cc": "int a;\n"})
        self.refuses(lint.check_format, {".clang-format": "NoSuchKey: 1\n", "a.cc": "int a;\n"}, "clang-format")


class Includes(Gate):
    def test_form(self):
        here = {"core/base/error.h": HEADER}
        self.refuses(lint.check_include_form, {"core/base/a.h": "int a;\n"}, "#pragma once")
        self.accepts(lint.check_include_form, {"core/kernels/simd-inl.h": "int a;\n"})
        self.refuses(lint.check_include_form, {"core/base/a.cc": '#include "error.h"\n', **here}, "not error.h")
        self.refuses(lint.check_include_form, {"core/base/a.cc": "#include <core/base/error.h>\n", **here}, "write <")
        self.refuses(lint.check_include_form, {"core/base/a.cc": "#include <palimpsest/core/base/eror.h>\n", **here},
                     "core/base/a.cc:1: palimpsest/core/base/eror.h does not exist")
        self.refuses(lint.check_include_form, {"core/base/a.cc": "#include <torch/torch.h>\n"}, "narrow")
        self.accepts(lint.check_include_form, {
            "core/base/a.cc": "#include <memory>\n#include <palimpsest/core/base/error.h>\n"
                              "#include <palimpsest/core/config/run.pb.h>\n",
            "core/config/run.proto": "", **here})

    def test_arrows_refused(self):
        for source, target in (
                ("core/base/a.h", "core/io/b.h"), ("core/engine/a.cc", "core/kernels/b.h"),
                ("core/plan/a.h", "memory/recompute/b.h"), ("core/models/a.h", "parallel/comm/b.h"),
                ("memory/recompute/a.cc", "offload/tiers/b.h"), ("offload/tiers/a.cc", "parallel/comm/b.h"),
                ("parallel/sharding/a.cc", "memory/profile/b.h"), ("parallel/comm/a.cc", "core/optim/b.h"),
                ("memory/report/a.cc", "launcher/compose/b.h"), ("launcher/cli/a.cc", "core/models/b.h"),
                ("launcher/cli/a.cc", "memory/recompute/b.h"), ("core/base/a.h", "tests/b.h"),
                ("core/base/a.h", "palimpsest.h"), ("examples/a.cc", "core/plan/b.h")):
            self.refuses(lint.check_arrows, {source: including(target)}, f"{source}:2:")
        self.refuses(lint.check_arrows, {"core/misc/a.h": HEADER}, "neither")

    def test_arrows_accepted(self):
        for source, target in (
                ("core/engine/a.cc", "core/contracts/b.h"), ("core/models/a.cc", "core/kernels/b.h"),
                ("core/models/a.cc", "core/plan/b.h"), ("memory/recompute/a.cc", "core/plan/b.h"),
                ("memory/planners/a.cc", "memory/profile/b.h"), ("launcher/compose/a.cc", "core/models/b.h"),
                ("launcher/compose/a.cc", "parallel/comm/b.h"), ("launcher/cli/a.cc", "launcher/compose/b.h"),
                ("launcher/cli/a.cc", "core/config/b.h"), ("examples/a.cc", "palimpsest.h"),
                ("tests/core/plan/a_test.cc", "memory/recompute/b.h"), ("benchmarks/a.cc", "core/io/b.h"),
                ("palimpsest.h", "launcher/compose/b.h")):
            self.accepts(lint.check_arrows, {source: including(target)})

    def test_cycle(self):
        tree = {"core/base/a.h": including("core/base/b.h"), "core/base/b.h": including("core/base/c.h"),
                "core/base/c.h": including("core/base/a.h")}
        self.refuses(lint.check_include_cycles, tree,
                     "core/base/c.h:2: include cycle: core/base/a.h -> core/base/b.h -> core/base/c.h -> core/base/a.h")
        self.accepts(lint.check_include_cycles, {**tree, "core/base/c.h": HEADER})
        self.refuses(lint.check_include_cycles, {"a.h": including("a.h")}, "a.h -> a.h")

    def test_folder_pair(self):
        tree = {"core/base/a.h": including("core/plan/a.h"), "core/plan/b.h": including("core/base/b.h"),
                "core/plan/a.h": HEADER, "core/base/b.h": HEADER}
        self.refuses(lint.check_folder_pairs, tree, "core/base and core/plan include each other")
        self.accepts(lint.check_folder_pairs, {**tree, "core/base/a.h": HEADER})


class Folders(Gate):
    def test_readme(self):
        self.refuses(lint.check_readmes, {"core/base/a.cc": ""}, "core/base/README.md:1: missing")
        self.refuses(lint.check_readmes, {"core/base/a.cc": "", "core/base/README.md": "- `ba.cc`, `ab.h`"}, "a.cc")
        self.accepts(lint.check_readmes, {"core/base/a.cc": "", "core/base/README.md": "- `a.h`, `a.cc`: letters"})

    def test_readme_of_mirrored_tests_is_the_folders_own(self):
        tree = {"core/base/a.cc": "", "core/base/README.md": "a.cc", "tests/core/base/a_test.cc": ""}
        self.accepts(lint.check_readmes, tree)
        self.refuses(lint.check_readmes, {"tests/gates/a.py": ""}, "tests/gates/README.md")

    def test_every_unit_has_a_test(self):
        unit = {"memory/recompute/sqrt.cc": ""}
        test = "tests/memory/recompute/"
        self.refuses(lint.check_tests, unit, "memory/recompute/sqrt.cc:1: no test")
        self.accepts(lint.check_tests, {**unit, test + "sqrt_test.cc": ""})
        self.refuses(lint.check_tests, {**unit, "tests/core/plan/sqrt_test.cc": ""}, "no test")
        self.accepts(lint.check_tests, {**unit, test + "policies_test.cc": "// Covers: sqrt.cc\n"})
        self.accepts(lint.check_tests, {**unit, "tests/core/plan/x_test.cc": "// Covers: memory/recompute/sqrt.cc\n"})
        self.refuses(lint.check_tests, {test + "policies_test.cc": "\n// Covers: gone.cc\n"}, "policies_test.cc:2: covers gone.cc")


class TheTree(unittest.TestCase):
    def test_includes_follow_the_arrows(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        if not (root / ".git").exists():
            self.skipTest("not a git checkout")
        tree = lint.Tree(root, lint.tracked_files(root))
        for check in (lint.check_include_form, lint.check_arrows, lint.check_include_cycles, lint.check_folder_pairs):
            self.assertEqual(list(check(tree)), [])


if __name__ == "__main__":
    unittest.main()
