# SPDX-License-Identifier: Apache-2.0
#
# Debian packages: cpack in a build folder whose prefix is /usr (./dev package). One for each component.
set(debian ${PROJECT_SOURCE_DIR}/cmake/debian)

# The changelog's head and first signature say which version this is, and who answers for it.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${debian}/changelog)
file(READ ${debian}/changelog changelog)
if(NOT changelog MATCHES "^gpulease \\((${PROJECT_VERSION}-([0-9a-z.+~]+))\\)")
  message(FATAL_ERROR "cmake/debian/changelog has to begin with an entry for version ${PROJECT_VERSION}")
endif()
set(this_version "(= ${CMAKE_MATCH_1})")
set(CPACK_DEBIAN_PACKAGE_RELEASE ${CMAKE_MATCH_2})
string(REGEX MATCH "\n -- ([^>]*>)" signature "${changelog}")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${CMAKE_MATCH_1})

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL daemon ctl sdk sdk-dev simulated)
# The configuration has an absolute path: everything is staged by DESTDIR, nothing by another prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${debian}/stage.cmake)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# gpulease_package(COMPONENT c NAME n SECTION s SUMMARY line TEXT lines [DEPENDS …] [RECOMMENDS …] [SUGGESTS …]
#                  [CONTROL file…])
function(gpulease_package)
  cmake_parse_arguments(arg "" "COMPONENT;NAME;SECTION;SUMMARY;TEXT" "DEPENDS;RECOMMENDS;SUGGESTS;CONTROL" ${ARGN})
  string(TOUPPER ${arg_COMPONENT} component)
  foreach(relation DEPENDS RECOMMENDS SUGGESTS)
    string(REPLACE ";" ", " list "${arg_${relation}}")
    set(CPACK_DEBIAN_${component}_PACKAGE_${relation} "${list}" PARENT_SCOPE)
  endforeach()
  set(CPACK_DEBIAN_${component}_PACKAGE_NAME ${arg_NAME} PARENT_SCOPE)
  set(CPACK_DEBIAN_${component}_PACKAGE_SECTION ${arg_SECTION} PARENT_SCOPE)
  set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA "${arg_CONTROL}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${component}_DESCRIPTION "${arg_SUMMARY}\n${arg_TEXT}" PARENT_SCOPE)
  install(FILES ${debian}/copyright DESTINATION share/doc/${arg_NAME} COMPONENT ${arg_COMPONENT})
  install(FILES ${debian}/changelog DESTINATION share/doc/${arg_NAME} COMPONENT ${arg_COMPONENT}
          RENAME changelog.Debian)
endfunction()

gpulease_package(COMPONENT daemon NAME gpuleased SECTION admin
  SUMMARY "leases GPU memory and pinned host memory to processes"
  TEXT "The daemon owns the memory of a machine's GPUs, and pinned host memory with it,
and leases it to processes: with an owner, a name, permissions, limits, a queue
and an end. It is started when the package is installed. Leases live on when it
is restarted or upgraded.
.
CUDA is not needed to install it: it serves when the driver is there."
  DEPENDS "init-system-helpers (>= 1.54)" "systemd (>= 252)" passwd
  RECOMMENDS "gpuleasectl ${this_version}"
  SUGGESTS libcuda1 libnvidia-ml1 nvidia-modprobe nvidia-persistenced "gpulease-simulated ${this_version}"
  CONTROL ${debian}/conffiles ${debian}/postinst ${debian}/prerm ${debian}/postrm)
gpulease_package(COMPONENT ctl NAME gpuleasectl SECTION admin
  SUMMARY "shows and administers gpuleased"
  TEXT "Shows a machine's GPUs, who holds how much of their memory, who waits for it
and why, and releases leases for an administrator."
  SUGGESTS gpuleased)
gpulease_package(COMPONENT sdk NAME libgpulease0 SECTION libs
  SUMMARY "leases of GPU memory and pinned host memory, for programs"
  TEXT "Asks gpuleased for memory, maps it without a copy, and shares it by name with
other processes."
  SUGGESTS gpuleased
  CONTROL ${debian}/triggers)
gpulease_package(COMPONENT sdk-dev NAME libgpulease-dev SECTION libdevel
  SUMMARY "leases of GPU memory and pinned host memory, to develop with"
  TEXT "The C++ header of libgpulease, with its pkg-config and CMake packages:
find_package(gpulease) has the target gpulease::client."
  DEPENDS "libgpulease0 ${this_version}")
gpulease_package(COMPONENT simulated NAME gpulease-simulated SECTION admin
  SUMMARY "simulated GPUs for gpuleased and its programs"
  TEXT "A driver for GPUs that are not there, over ordinary memory: with
'simulate: \"2x16GiB\"' in its configuration gpuleased leases them, and programs
that use libgpulease run as they do with real ones.")
include(CPack)
