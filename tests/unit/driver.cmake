# SPDX-License-Identifier: Apache-2.0
gpulease_test(NAME driver_test
  SRCS driver_load_test.cc driver_test.cc
  DEPS gpulease_base gpulease_driver gpulease_driver_peer gpulease_simulation)

# Libraries that the driver must refuse to load.
foreach(stub IN ITEMS 11 12 foreign)
  add_library(driver_stub_${stub} MODULE driver_stub.cc)
  target_link_libraries(driver_stub_${stub} PRIVATE gpulease_settings)
  set_target_properties(driver_stub_${stub} PROPERTIES PREFIX lib OUTPUT_NAME driver-stub-${stub})
endforeach()
target_compile_definitions(driver_stub_11 PRIVATE STUB_VERSION=11040)
target_compile_definitions(driver_stub_12 PRIVATE STUB_VERSION=12040)
target_compile_definitions(driver_stub_foreign PRIVATE STUB_FOREIGN)
add_dependencies(driver_test gpulease_simulated driver_stub_11 driver_stub_12 driver_stub_foreign)

# Where there is a CUDA Toolkit, our declarations are held against its header.
find_path(GPULEASE_CUDA_HEADERS cuda.h
  HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include NO_DEFAULT_PATH)
if(GPULEASE_CUDA_HEADERS)
  gpulease_test(NAME driver_abi_test SRCS driver_abi_test.cc DEPS gpulease_driver)
  target_include_directories(driver_abi_test SYSTEM PRIVATE ${GPULEASE_CUDA_HEADERS})
endif()
