/* Every other library of the simulated driver: it can be found, loaded and asked
 * for its name, and does nothing. */
#include <stdlib.h>

__attribute__((visibility("default"))) const char *nvidia_sim_library(void)
{
	/* A call, so that the file needs a symbol of libc as the real ones do. */
	return getenv("NVIDIA_SIM_QUIET") ? "" : SIM_LIBRARY " " SIM_VERSION;
}
