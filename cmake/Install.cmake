# SPDX-License-Identifier: Apache-2.0
#
# What a package holds beside programs and libraries, which their folders install: units, configuration, man page.
set(GPULEASE_UNIT_DIR lib/systemd/system CACHE STRING "Where systemd's units go, below the prefix")

# /etc when the prefix is /usr, else below the prefix.
set(gpulease_config ${CMAKE_INSTALL_FULL_SYSCONFDIR}/gpulease)
# An administrator's changes survive a second installation.
install(CODE "set(gpulease_config \"\$ENV{DESTDIR}${gpulease_config}\")")
install(CODE "set(gpulease_source \"${PROJECT_SOURCE_DIR}\")")
install(CODE [[
  if(EXISTS ${gpulease_config}/gpuleased.textproto)
    message(STATUS "Left as it is: ${gpulease_config}/gpuleased.textproto")
  else()
    message(STATUS "Installing: ${gpulease_config}/gpuleased.textproto")
    file(COPY ${gpulease_source}/config/gpuleased.textproto DESTINATION ${gpulease_config})
  endif()]])

# The unit of the tree says where Debian has things; an installation elsewhere says its own.
file(READ systemd/gpuleased.service unit)
string(REPLACE "/usr/bin/gpuleased" "${CMAKE_INSTALL_FULL_BINDIR}/gpuleased" unit "${unit}")
string(REPLACE "/etc/gpulease" "${gpulease_config}" unit "${unit}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gpuleased.service CONTENT "${unit}" @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS systemd/gpuleased.service)
install(FILES ${PROJECT_BINARY_DIR}/gpuleased.service DESTINATION ${GPULEASE_UNIT_DIR})
install(FILES systemd/gpulease.sysusers.conf DESTINATION lib/sysusers.d RENAME gpulease.conf)
install(FILES systemd/gpulease.tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME gpulease.conf)
install(FILES docs/man/gpuleasectl.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(CODE [[
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo
    "Next, as root: systemd-sysusers && systemd-tmpfiles --create && systemctl enable --now gpuleased")]])
