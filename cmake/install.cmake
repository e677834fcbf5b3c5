# Library, headers, command, pkg-config file and CMake package.
include(CMakePackageConfigHelpers)

install(TARGETS banyan EXPORT banyan-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET banyan_cli)
  install(TARGETS banyan_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/banyan DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/docs/layout.schema.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/banyan)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/rules DESTINATION ${CMAKE_INSTALL_DATADIR}/banyan
        FILES_MATCHING PATTERN "*.rules")
if(TARGET banyan_cli)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/banyan.bash RENAME banyan
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/_banyan
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
# `make docs` makes these.
install(DIRECTORY ${PROJECT_BINARY_DIR}/docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR} OPTIONAL)
install(DIRECTORY ${PROJECT_BINARY_DIR}/docs/html ${PROJECT_BINARY_DIR}/docs/python
        DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(EXPORT banyan-targets NAMESPACE banyan::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/banyan)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/banyan-config.cmake.in
  ${PROJECT_BINARY_DIR}/banyan-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/banyan)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/banyan-config-version.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/banyan-config.cmake
              ${PROJECT_BINARY_DIR}/banyan-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/banyan)

# The prefix is known when installing, not before: `cmake --install --prefix` may change it.
install(CODE "
  set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  configure_file(\"${CMAKE_CURRENT_LIST_DIR}/banyan.pc.in\"
                 \"${PROJECT_BINARY_DIR}/banyan.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/banyan.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
