/* A 32-bit library of the simulated driver, which can be found and loaded. It includes
 * nothing: hosts without the 32-bit C library have none of its headers. */
__attribute__((visibility("default"))) const char nvidia_sim_library[] = SIM_LIBRARY " " SIM_VERSION;
