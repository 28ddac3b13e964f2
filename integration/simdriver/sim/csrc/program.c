/* Every program of the simulated driver but nvidia-smi: it says its name. */
#include <stdio.h>

#include "start.h"

int main(void)
{
	puts(SIM_PROGRAM ": simulated driver " SIM_VERSION);
	return 0;
}
