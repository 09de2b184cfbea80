# SPDX-License-Identifier: Apache-2.0
#
# What an installation holds beside programs and libraries, which their folders install: units, configuration, man
# pages. Components are packages (Package.cmake); what names none belongs to the daemon.
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

# The units of the tree say where Debian has things; an installation elsewhere says its own. What this machine's systemd
# does not know it would complain about at every reload.
foreach(unit gpuleased.service gpuleased.socket gpulease-keeper.service gpulease-driver.service)
  file(READ systemd/${unit} text)
  string(REPLACE "/usr/bin/gpulease" "${CMAKE_INSTALL_FULL_BINDIR}/gpulease" text "${text}")
  string(REPLACE "/etc/gpulease" "${gpulease_config}" text "${text}")
  if(SYSTEMD_VERSION VERSION_LESS 254)
    string(REGEX REPLACE "\nRestart(Steps|MaxDelaySec)=[^\n]*" "" text "${text}")
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${unit} CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS systemd/${unit})
  install(FILES ${PROJECT_BINARY_DIR}/${unit} DESTINATION ${GPULEASE_UNIT_DIR})
endforeach()
install(FILES systemd/gpulease.sysusers.conf DESTINATION lib/sysusers.d RENAME gpulease.conf)
install(FILES systemd/gpulease.tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME gpulease.conf)
install(FILES systemd/60-gpulease.rules DESTINATION lib/udev/rules.d)
install(FILES docs/man/gpuleased.8 docs/man/gpulease-ipc-host.8 docs/man/gpulease-keeper.8
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES docs/man/gpuleasectl.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ctl)
