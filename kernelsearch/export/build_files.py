"""Write what builds take a bundle by: CMake, a Makefile fragment, a pkg-config file."""

from __future__ import annotations

from collections.abc import Sequence


def cmake_lists(name: str, archs: Sequence[str]) -> str:
    """Return the bundle's ``CMakeLists.txt``: a static library that needs no GPU."""
    return f"""# {name}: written by kernelsearch export; do not edit. Use it with
#   add_subdirectory(BUNDLE)  target_link_libraries(app PRIVATE kernelsearch::{name})
cmake_minimum_required(VERSION 3.18)
project(kernelsearch_{name} LANGUAGES CXX)
add_library(kernelsearch_{name} STATIC {name}.cpp)
add_library(kernelsearch::{name} ALIAS kernelsearch_{name})
target_compile_features(kernelsearch_{name} PUBLIC cxx_std_17)
target_include_directories(kernelsearch_{name} PUBLIC "${{CMAKE_CURRENT_SOURCE_DIR}}")
find_package(Threads REQUIRED)
target_link_libraries(kernelsearch_{name} PUBLIC ${{CMAKE_DL_LIBS}} Threads::Threads)
set_target_properties(kernelsearch_{name} PROPERTIES
  POSITION_INDEPENDENT_CODE ON
  KERNELSEARCH_ARCHITECTURES "{";".join(archs)}")
"""


def make_fragment(name: str) -> str:
    """Return ``bundle.mk``: ``include`` it, link ``$(KERNELSEARCH_..._LIB)``."""
    upper = name.upper()
    return f"""# {name}: written by kernelsearch export; do not edit. In a Makefile:
#   include path/to/bundle/bundle.mk
#   app: app.o $(KERNELSEARCH_{upper}_LIB)
#   	$(CXX) -o $@ $^ $(KERNELSEARCH_{upper}_LIBS)
KERNELSEARCH_{upper}_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
KERNELSEARCH_{upper}_BUILD ?= .
KERNELSEARCH_{upper}_LIB := $(KERNELSEARCH_{upper}_BUILD)/libkernelsearch_{name}.a
KERNELSEARCH_{upper}_CFLAGS := -I$(KERNELSEARCH_{upper}_DIR)
KERNELSEARCH_{upper}_LIBS := -lstdc++ -ldl -lpthread -lm

$(KERNELSEARCH_{upper}_BUILD)/kernelsearch_{name}.o: \\
    $(KERNELSEARCH_{upper}_DIR)/{name}.cpp $(wildcard $(KERNELSEARCH_{upper}_DIR)/*.h*) \\
    $(wildcard $(KERNELSEARCH_{upper}_DIR)/kernelsearch/*.hpp)
	$(CXX) -std=c++17 -O2 -fPIC $(CXXFLAGS) $(KERNELSEARCH_{upper}_CFLAGS) -c $< -o $@

$(KERNELSEARCH_{upper}_LIB): $(KERNELSEARCH_{upper}_BUILD)/kernelsearch_{name}.o
	$(AR) rcs $@ $^
"""


def pkg_config(name: str, doc: str, version: str) -> str:
    """Return ``kernelsearch_<operator>.pc``; its place is found from the file's own folder."""
    return f"""prefix=${{pcfiledir}}
Name: kernelsearch_{name}
Description: {" ".join(doc.split())}
Version: {version}
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -lkernelsearch_{name} -lstdc++ -ldl -lpthread -lm
"""
