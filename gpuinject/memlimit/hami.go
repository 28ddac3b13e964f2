package memlimit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// envHAMi begins the names of HAMi's variables: <envHAMi>_0=1024m limits the container's first GPU, and
// <envHAMi> each GPU. Its suffixes k, m and g are powers of 1024, and 0 is no limit.
const envHAMi = "CUDA_DEVICE_MEMORY_LIMIT"

// AddHAMi adds the limits of HAMi's variables, without requests, unless NVIDIA's ask for something or
// HAMi allows more memory than there is.
func (a *Asked) AddHAMi(env map[string]string) {
	if !a.Environment.Empty() || env["CUDA_OVERSUBSCRIBE"] == "true" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		gpu, ok := strings.CutPrefix(name, envHAMi)
		if !ok || gpu != "" && gpu[0] != '_' || strings.Trim(env[name], "0kmgKMG") == "" {
			continue
		}
		item := strings.TrimRight(env[name], "kmgKMG")
		if unit := env[name][len(item):]; unit != "" {
			item += strings.ToUpper(unit) + "i"
		}
		if gpu != "" {
			item = gpu[1:] + "=" + item
		}
		list, err := Parse(item, 1)
		if err != nil && a.Err == nil {
			a.Err = fmt.Errorf("%.256q: %w", name, err)
		}
		for _, amount := range list {
			a.Environment.Limit = append(a.Environment.Limit, amount)
			a.Environment.Request = append(a.Environment.Request, Amount{GPU: amount.GPU})
		}
		a.Environment.LimitFrom, a.Environment.RequestFrom = name, name
	}
}
