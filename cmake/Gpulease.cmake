# SPDX-License-Identifier: Apache-2.0
#
# One call per folder: gpulease_library, gpulease_program, gpulease_test. DEPS are the arrows of the map in the README;
# a target sees the headers of what it names there and of nothing else of ours.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME daemon)  # what installs without naming a package is the daemon's

set(GPULEASE_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: address,undefined or thread")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

set(GPULEASE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
                      -Wno-gnu-zero-variadic-macro-arguments -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND GPULEASE_WARNINGS -Wthread-safety -Wno-missing-braces -Wno-c99-designator)
endif()

add_library(gpulease_settings INTERFACE)
target_include_directories(gpulease_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(gpulease_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${GPULEASE_WARNINGS}>)
if(GPULEASE_SANITIZE)
  add_compile_options(-fsanitize=${GPULEASE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GPULEASE_SANITIZE})
endif()
if(GPULEASE_SANITIZE MATCHES "thread")
  add_compile_definitions(GPULEASE_TSAN=1)
endif()

# gpulease_library(NAME n [HDRS …] SRCS … [DEPS …]): a static library gpulease_n.
function(gpulease_library)
  cmake_parse_arguments(arg "" "NAME" "HDRS;SRCS;DEPS" ${ARGN})
  add_library(gpulease_${arg_NAME} STATIC ${arg_SRCS} ${arg_HDRS})
  target_link_libraries(gpulease_${arg_NAME} PUBLIC gpulease_settings ${arg_DEPS} Threads::Threads)
endfunction()

# gpulease_program(NAME n SRCS … [DEPS …]): an executable of that name.
function(gpulease_program)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  target_link_libraries(${arg_NAME} PRIVATE gpulease_settings ${arg_DEPS} Threads::Threads)
endfunction()

# gpulease_test(NAME n SRCS … [DEPS …] [LABELS …] [TIMEOUT s]): a GoogleTest program, one ctest test.
function(gpulease_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  target_link_libraries(${arg_NAME} PRIVATE gpulease_settings ${arg_DEPS} GTest::gmock_main Threads::Threads)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    ENVIRONMENT "GPULEASE_BUILD_DIR=${PROJECT_BINARY_DIR};GPULEASE_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
endfunction()
